// Reads Prometheus text format 0.0.4 strictly: for tests that what we serve is what a scraper understands. Refuses
// lines out of order, samples without a declared type, doubled samples and histograms that do not add up. For tests
// only.

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export interface Exposition {
  /** Metric name → counter, gauge or histogram. */
  readonly types: ReadonlyMap<string, string>;
  readonly samples: readonly Sample[];
  /** The one sample with this name and exactly these labels; undefined when there is none. */
  value(name: string, labels?: Readonly<Record<string, string>>): number | undefined;
}

const SAMPLE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)/y;

export function parseMetrics(text: string): Exposition {
  if (!text.endsWith('\n')) throw new Error('the text does not end with a line feed');
  const types = new Map<string, string>();
  const samples = new Map<string, Sample>();
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('# HELP ')) continue;
    const type = /^# TYPE (\S+) (counter|gauge|histogram|summary|untyped)$/.exec(line);
    if (type !== null) {
      if (types.has(type[1]!)) throw new Error(`two types for ${type[1]}`);
      types.set(type[1]!, type[2]!);
      continue;
    }
    const sample = parseSample(line);
    if (!types.has(familyOf(sample.name, types))) throw new Error(`a sample without a type: ${line}`);
    const key = keyOf(sample.name, sample.labels);
    if (samples.has(key)) throw new Error(`the same sample twice: ${line}`);
    samples.set(key, sample);
  }
  checkHistograms(types, [...samples.values()]);
  return {
    types,
    samples: [...samples.values()],
    value: (name, labels = {}) => samples.get(keyOf(name, labels))?.value,
  };
}

function parseSample(line: string): Sample {
  const match = SAMPLE.exec(line);
  if (match === null) throw new Error(`not a sample: ${line}`);
  const value = match[3] === '+Inf' ? Infinity : Number(match[3]);
  if (Number.isNaN(value) && match[3]?.toLowerCase() !== 'nan') throw new Error(`not a number: ${line}`);
  return { name: match[1]!, labels: parseLabels(match[2] ?? '', line), value };
}

function parseLabels(text: string, line: string): Record<string, string> {
  const labels: Record<string, string> = {};
  LABEL.lastIndex = 0;
  while (LABEL.lastIndex < text.length) {
    const match = LABEL.exec(text);
    if (match === null) throw new Error(`labels that cannot be read: ${line}`);
    labels[match[1]!] = match[2]!.replaceAll(/\\(["\\n])/g, (_, character: string) =>
      character === 'n' ? '\n' : character,
    );
  }
  return labels;
}

function familyOf(name: string, types: ReadonlyMap<string, string>): string {
  const family = name.replace(/_(bucket|sum|count)$/, '');
  return types.get(family) === 'histogram' ? family : name;
}

function keyOf(name: string, labels: Readonly<Record<string, string>>): string {
  return `${name} ${JSON.stringify(Object.entries(labels).toSorted(([a], [b]) => (a < b ? -1 : 1)))}`;
}

function checkHistograms(types: ReadonlyMap<string, string>, samples: readonly Sample[]): void {
  for (const [family, type] of types) {
    if (type !== 'histogram') continue;
    const series = Map.groupBy(
      samples.filter(({ name }) => name === `${family}_bucket`),
      ({ labels }) => keyOf('', { ...labels, le: '' }),
    );
    for (const buckets of series.values()) {
      const counts = buckets.map(({ value }) => value);
      if (counts.some((count, i) => count < (counts[i - 1] ?? 0)))
        throw new Error(`${family}: its buckets do not grow`);
      if (buckets.at(-1)?.labels['le'] !== '+Inf') throw new Error(`${family}: its last bucket is not +Inf`);
    }
  }
}
