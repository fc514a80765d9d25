import { defineConfig } from 'vitest/config';
import { ALONE, FAULTS, LongestFirst, PATIENT, PURE, RECKONS } from './tools/test-groups.ts';

// Tests run the TypeScript sources themselves: the condition makes every @shoal/* import resolve to src/. Processes
// that they start come from `dist` in the whole suite (libs/core/src/testing/programs.ts).
const conditions = ['@shoal/source', 'node', 'import', 'default'];

// WebGPU's tests run by themselves where a driver in software is there for them (tools/test.sh).
const WEBGPU_APART = process.env['SHOAL_TEST_VULKAN'] !== undefined && process.env['VK_DRIVER_FILES'] === undefined;
const EVERYWHERE = ['**/node_modules/**', '**/dist/**', ...(WEBGPU_APART ? ['**/webgpu.test.ts'] : [])];

// What takes longest takes 60 s where nobody else works, and starting all of `shoal up` 3 s, and 15 s and more
// elsewhere. Long forms take longer: what ends them is a night that ends.
const MOST_MS = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 180_000 : 1_200_000;

const common = {
  testTimeout: MOST_MS,
  hookTimeout: MOST_MS,
  pool: 'forks' as const,
  expect: { poll: { timeout: 20_000 } },
  env: { ORT_DISABLE_TELEMETRY: '1' }, // some tests open ONNX Runtime by themselves
  execArgv: ['--conditions=@shoal/source'],
};

const ssr = { resolve: { conditions, externalConditions: ['@shoal/source'] } };

/** See tools/test-groups.ts for what the groups are. */
const project = (name: string, include: readonly string[], exclude: readonly string[], more: object = {}) => ({
  ssr,
  test: { ...common, name, include: [...include], exclude: [...EVERYWHERE, ...exclude], ...more },
});

export default defineConfig({
  ssr,
  test: {
    sequence: { sequencer: LongestFirst },
    projects: [
      project('pure', PURE, FAULTS, { isolate: false }),
      project('reckons', RECKONS, [...FAULTS, ...ALONE, ...PATIENT]),
      project('waits', ['**/*.test.ts'], [...PURE, ...RECKONS, ...FAULTS, ...ALONE, ...PATIENT]),
      project('faults', FAULTS, ALONE, { retry: 1 }),
      project('alone', ALONE, [], { retry: 1 }),
      project('patient', PATIENT, [], { retry: 1 }),
    ],
  },
});
