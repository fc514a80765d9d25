// Lines over ten minutes and bars of memory as SVG, drawn by the server: no script, no style of their own, one sentence
// each for who does not see them. Colours are classes of style.ts.

import { html, type Html } from './html.ts';
import { bytesText } from './words.ts';

const WIDTH = 240;
const HEIGHT = 48;
const BAR_HEIGHT = 14;

export interface Line {
  /** What is drawn, for who does not see it: "texts a second" */
  readonly label: string;
  /** One a step, oldest first; undefined where nothing is known. */
  readonly points: readonly (number | undefined)[];
  /** The upper edge; left out: the largest point. */
  readonly most?: number;
  /** A figure in words. */
  readonly say: (value: number) => string;
}

/** A line with an area below it; gaps where nothing is known. */
export function lineChart({ label, points, most, say }: Line): Html {
  const known = points.filter((point) => point !== undefined);
  const top = Math.max(most ?? 0, ...(most === undefined ? known : []), Number.MIN_VALUE);
  const x = (at: number): number => round((WIDTH * at) / Math.max(1, points.length - 1));
  const y = (value: number): number => round(HEIGHT - 2 - (HEIGHT - 4) * Math.min(1, value / top));
  const runs = runsOf(points).map((run) => run.map(([at, value]) => `${x(at)},${y(value)}`));
  const said =
    known.length === 0
      ? `${label} over ten minutes: nothing known yet`
      : `${label} over ten minutes: now ${say(known.at(-1)!)}, most ${say(Math.max(...known))}`;
  return html`<svg
    class="line"
    viewBox="0 0 ${WIDTH} ${HEIGHT}"
    preserveAspectRatio="none"
    role="img"
    aria-label="${said}"
  >
    ${runs.map((run) => {
      const [first = '0,0', last = '0,0'] = [run[0], run.at(-1)];
      const area = `${first.split(',')[0]},${HEIGHT} ${run.join(' ')} ${last.split(',')[0]},${HEIGHT}`;
      return html`<polygon class="area" points="${area}" /><polyline points="${run.join(' ')}" />`;
    })}
  </svg>`;
}

/** Neighbours that are known; one alone is drawn as wide as a step. */
function runsOf(
  points: readonly (number | undefined)[],
): readonly (readonly (readonly [at: number, value: number])[])[] {
  const runs: [number, number][][] = [];
  let open: [number, number][] | undefined;
  for (const [at, value] of points.entries()) {
    if (value === undefined) open = undefined;
    else if (open === undefined) runs.push((open = [[at, value]]));
    else open.push([at, value]);
  }
  return runs.map((run) => (run.length > 1 ? run : [[Math.max(0, run[0]![0] - 1), run[0]![1]], run[0]!]));
}

export interface Share {
  /** "model", "peak", "others", "free": a class of style.ts too. */
  readonly kind: 'model' | 'residents' | 'peak' | 'own' | 'others' | 'free';
  readonly bytes: number;
}

/** Who holds what of a memory, with a legend in words below. */
export function memoryBar(totalBytes: number, shares: readonly Share[]): Html {
  const shown = shares.filter(({ bytes }) => bytes > 0);
  const said = `memory of ${bytesText(totalBytes)}: ${shown.map(({ kind, bytes }) => `${kind} ${bytesText(bytes)}`).join(', ')}`;
  let from = 0;
  const parts = shown.map(({ kind, bytes }) => {
    const [x, width] = [from, (WIDTH * bytes) / totalBytes];
    from += width;
    return html`<rect class="${kind}" x="${round(x)}" width="${round(Math.max(1, width))}" height="${BAR_HEIGHT}" />`;
  });
  return html`<svg
      class="bar"
      viewBox="0 0 ${WIDTH} ${BAR_HEIGHT}"
      preserveAspectRatio="none"
      role="img"
      aria-label="${said}"
    >
      ${parts}
    </svg>
    <ul class="legend" aria-hidden="true">
      ${shown.map(({ kind, bytes }) => html`<li><span class="key ${kind}"></span>${kind} ${bytesText(bytes)}</li>`)}
    </ul>`;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
