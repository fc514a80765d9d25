// The steps of the bench, in the order they run: which file, with which arguments, and how long it takes on one H200.

export interface Step {
  readonly name: string;
  /** Steps that are usually asked for together. */
  readonly group:
    | 'speed'
    | 'limits'
    | 'similarity'
    | 'two'
    | 'payloads'
    | 'cells'
    | 'cells-more'
    | 'parts'
    | 'simulation'
    | 'up';
  readonly file: string;
  readonly args?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly seconds: number;
}

const endToEnd = (label: string, ...args: readonly string[]): Pick<Step, 'name' | 'file' | 'args'> => ({
  name: label,
  file: 'end-to-end.ts',
  args: ['--label', label, ...args],
});
const ONE_SESSION = ['--settings', '{"SHOAL_DEVICE_SESSIONS":"1"}'] as const;

type Placed = 'server' | 'beside 1' | 'beside 2';

/** Inputs and results with the queue server, or on so many servers beside it. */
function placed(where: Placed, gpus: 'one' | 'two', dtype: 'f32' | 'f16'): Step {
  const [beside = '0'] = /\d/.exec(where) ?? [];
  const label = `payloads: ${where}, ${gpus}, ${dtype}`;
  const load = ['--clients', '12', '--job-texts', '256', '--warm', '5', '--seconds', '3', '--windows', '3'];
  const asked = ['--devices', gpus === 'two' ? '2' : '1', '--payload-servers', beside, '--peeks', '--dtype', dtype];
  return { ...endToEnd(label, ...load, ...asked), group: 'payloads', seconds: 45 };
}

/** Once each, those that are compared behind each other; twice for f32, in the other order then. */
const PAYLOADS: readonly Step[] = (['f32', 'f16'] as const).flatMap((dtype) => [
  placed('server', 'two', dtype),
  placed('beside 2', 'two', dtype),
  placed('beside 2', 'one', dtype),
  placed('server', 'one', dtype),
  placed('beside 1', 'two', dtype),
]);
const RATIOS: Step = { name: 'payload-ratios', group: 'payloads', file: 'payload-ratios.ts', seconds: 5 };

const CELLS_ARGS = '--own-cores --controls --device sim --tokens-per-ms 0 --producers 12 --in-flight 3072'.split(' ');
/** Cells on simulated devices that are faster than a queue server is, beside what the machine does without cells. */
const cells = (jobTexts: string, rounds: string, seconds: number): Step => ({
  name: `cells: ${jobTexts} texts a job`,
  group: 'cells',
  file: '../queue/cells.ts',
  args: [...CELLS_ARGS, '--job-texts', jobTexts, '--rounds', rounds, '--seconds', '4'],
  seconds,
});

export const STEPS: readonly Step[] = [
  // first what everything else is about
  { ...endToEnd('tokens'), group: 'speed', seconds: 50 },
  { ...endToEnd('tokens: one session', ...ONE_SESSION), group: 'speed', seconds: 50 },
  // the same with ONNX Runtime: the first row's encoder is the native one where it was built
  { ...endToEnd('tokens: ort', '--settings', '{"SHOAL_ENCODER":"ort"}'), group: 'speed', seconds: 50 },
  { name: 'corpus', group: 'speed', file: 'corpus.ts', seconds: 10 },
  { name: 'torch', group: 'speed', file: 'torch_loops.py', seconds: 120 },
  {
    ...endToEnd('inline', '--form', 'inline', '--clients', '4', '--settings', '{"SHOAL_TOKENIZER_THREADS":"6"}'),
    group: 'speed',
    seconds: 50,
  },
  { name: 'one-text', group: 'speed', file: 'one-text.ts', seconds: 40 },
  { name: 'precision', group: 'speed', file: 'precision.ts', seconds: 60 },
  {
    name: 'precision: tf32',
    group: 'speed',
    file: 'precision.ts',
    environment: { NVIDIA_TF32_OVERRIDE: '1' },
    seconds: 20,
  },
  { ...endToEnd('128 tokens', '--corpus', '128', '--windows', '1'), group: 'speed', seconds: 40 },
  { ...endToEnd('512 tokens', '--corpus', '512', '--windows', '1', '--in-flight', '32'), group: 'speed', seconds: 40 },
  // where the time and the memory go
  { name: 'profile', group: 'limits', file: 'profile.ts', environment: { CUDA_LAUNCH_BLOCKING: '1' }, seconds: 15 },
  {
    name: 'profile: 128',
    group: 'limits',
    file: 'profile.ts',
    args: ['--rows', '512', '--width', '128'],
    environment: { CUDA_LAUNCH_BLOCKING: '1' },
    seconds: 15,
  },
  {
    name: 'profile: one',
    group: 'limits',
    file: 'profile.ts',
    args: ['--rows', '1', '--width', '16'],
    environment: { CUDA_LAUNCH_BLOCKING: '1' },
    seconds: 15,
  },
  { name: 'start-up', group: 'limits', file: '../queue/start-up.ts', args: ['--rounds', '3'], seconds: 60 },
  { name: 'labels', group: 'limits', file: 'labels.ts', seconds: 40 },
  {
    name: 'out-of-memory: engine',
    group: 'limits',
    file: 'co_tenant.py',
    args: ['--leave-mebibytes', '12000', '--', 'out-of-memory.ts'],
    seconds: 60,
  },
  // beside somebody who leaves little: told by the driver, the worker stays within it; blind, it runs out of memory and
  // has to learn
  {
    name: 'co-tenant',
    group: 'limits',
    file: 'co_tenant.py',
    args: [
      '--leave-mebibytes',
      '2600',
      '--',
      'end-to-end.ts',
      '--label',
      'co-tenant',
      '--total',
      '262144',
      '--settings',
      '{"SHOAL_MAX_PADDED_TOKENS":"1048576"}',
    ],
    seconds: 60,
  },
  {
    name: 'co-tenant: blind',
    group: 'limits',
    file: 'co_tenant.py',
    args: [
      '--leave-mebibytes',
      '2600',
      '--blind',
      '--',
      'end-to-end.ts',
      '--label',
      'co-tenant, blind',
      '--total',
      '262144',
      '--settings',
      '{"SHOAL_MAX_PADDED_TOKENS":"1048576"}',
    ],
    seconds: 90,
  },
  { name: 'engine', group: 'limits', file: 'engine.ts', seconds: 120 },
  { name: 'engine: native', group: 'speed', file: 'engine.ts', args: ['--only', 'native,native-erf'], seconds: 40 },
  // attention by other kernels
  {
    name: 'engine: without fused attention',
    group: 'limits',
    file: 'engine.ts',
    args: ['--only', 'fused-fp16'],
    environment: { ORT_DISABLE_FUSED_ATTENTION: '1' },
    seconds: 25,
  },
  {
    name: 'engine: without memory-efficient attention',
    group: 'limits',
    file: 'engine.ts',
    args: ['--only', 'fused-fp16'],
    environment: { ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION: '1' },
    seconds: 25,
  },
  // similarity
  { name: 'similarity', group: 'similarity', file: 'similarity.ts', seconds: 110 },
  {
    name: 'similarity: queue',
    group: 'similarity',
    file: '../similarity/similarity-queue.ts',
    args: ['--jobs', '2048'],
    seconds: 60,
  },
  { name: 'similarity: memory', group: 'similarity', file: 'similarity-memory.ts', seconds: 60 },
  // several GPUs
  { ...endToEnd('two: one of them', '--clients', '6'), group: 'two', seconds: 60 },
  { ...endToEnd('two: both', '--device', 'gpu:0,gpu:1', '--clients', '6'), group: 'two', seconds: 60 },
  // half the bytes for the one server between them
  { ...endToEnd('two: one of them, f16 results', '--clients', '6', '--dtype', 'f16'), group: 'two', seconds: 60 },
  {
    ...endToEnd('two: both, f16 results', '--device', 'gpu:0,gpu:1', '--clients', '6', '--dtype', 'f16'),
    group: 'two',
    seconds: 60,
  },
  {
    ...endToEnd(
      'two: one killed',
      '--device',
      'gpu:0,gpu:1',
      '--clients',
      '6',
      '--total',
      '2000000',
      '--kill',
      'gpu:1',
    ),
    group: 'two',
    seconds: 90,
  },
  ...PAYLOADS,
  RATIOS,
  ...PAYLOADS.slice(0, PAYLOADS.length / 2).toReversed(),
  RATIOS,
  // several queue servers, for the cores of a GPU machine; the last with its GPUs
  cells('8', '3', 120),
  cells('2', '2', 90),
  {
    name: 'cells: one away',
    group: 'cells-more',
    file: '../queue/cells.ts',
    args: ['--device', 'sim', '--tokens-per-ms', '0', '--producers', '12', '--rounds', '0', '--away', '60'],
    seconds: 120,
  },
  {
    name: 'cells: two GPUs',
    group: 'cells-more',
    file: '../queue/cells.ts',
    args: ['--device', 'gpu:0,gpu:1', '--producers', '12', '--job-texts', '256', '--rounds', '2', '--seconds', '6'],
    seconds: 90,
  },
  { name: 'parts', group: 'parts', file: 'parts.ts', args: ['--label', 'parts'], seconds: 150 },
  {
    name: 'parts: two',
    group: 'parts',
    file: 'parts.ts',
    args: ['--label', 'parts: two', '--devices', '2', '--copies', '224'],
    seconds: 180,
  },
  // the same digest on every machine
  {
    name: 'simulation',
    group: 'simulation',
    file: '../world/simulate.ts',
    args: ['--from', '1', '--seeds', '200', '--json'],
    seconds: 30,
  },
  { name: 'up', group: 'up', file: 'up.ts', seconds: 60 },
];
