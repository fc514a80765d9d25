import { defineConfig } from 'vitest/config';

// Tests run the TypeScript sources themselves: the condition makes every @shoal/* import resolve to src/.
const conditions = ['@shoal/source', 'node', 'import', 'module', 'default'];

export default defineConfig({
  ssr: { resolve: { conditions, externalConditions: ['@shoal/source'] } },
  test: {
    include: ['**/*.test.ts'],
    exclude: ['**/node_modules/**', '**/dist/**'],
    // what takes longest takes 60 s where nobody else works, and starting all of `shoal up` 3 s, and 15 s and more
    // elsewhere
    testTimeout: 180_000,
    hookTimeout: 180_000,
    // Leases, looks and restarts run by real clocks, and a machine that stands still for seconds breaks any of them:
    // such a test gets a second attempt, which the report names. A fault of ours fails twice.
    retry: 1,
    pool: 'forks',
    expect: { poll: { timeout: 10_000 } },
    env: { ORT_DISABLE_TELEMETRY: '1' }, // some tests open ONNX Runtime by themselves
    execArgv: ['--conditions=@shoal/source'],
  },
});
