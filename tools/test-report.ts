/**
 * What `tools/test.sh` reads after each suite, as Vitest's reporter: a line with three counts (passed, failed,
 * skipped), and after it a line for each test that failed, each that passed at its second attempt, and each error
 * outside every test. Such an error counts as a failure. Last come the files that took longest ("time: …"), for
 * tools/test-groups.ts. The file is the one in SHOAL_TEST_REPORT.
 */
import { writeFileSync } from 'node:fs';
import type { SerializedError } from 'vitest';
import type { Reporter, TestModule, TestRunEndReason } from 'vitest/node';

export default class implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[], reason: TestRunEndReason): void {
    const tests = modules.flatMap((module) => [...module.children.allTests()]);
    const inState = (state: string) => tests.filter((test) => test.result().state === state);
    const failed = inState('failed').map(
      (test) => `failed: ${test.module.relativeModuleId} > ${test.fullName}: ${told(test.result().errors)}`,
    );
    for (const module of modules) {
      const suites = [...module.children.allSuites()].flatMap((suite) => suite.errors());
      failed.push(
        ...[...module.errors(), ...suites].map(
          (error) => `failed outside a test: ${module.relativeModuleId}: ${told([error])}`,
        ),
      );
    }
    failed.push(...unhandled.map((error) => `failed outside a test: ${error.stack ?? told([error])}`));
    if (failed.length === 0 && reason !== 'passed')
      failed.push(`failed: the run ended with "${reason}" and names no test`);
    const again = inState('passed').filter((test) => (test.diagnostic()?.retryCount ?? 0) > 0);
    const lines = [
      `${inState('passed').length} ${failed.length} ${inState('skipped').length}`,
      ...failed,
      ...again.map(
        (test) => `second attempt: ${test.module.relativeModuleId} > ${test.fullName}: ${told(test.result().errors)}`,
      ),
    ];
    const byTime = modules.toSorted((a, b) => b.diagnostic().duration - a.diagnostic().duration);
    for (const module of byTime.slice(0, 12))
      lines.push(`time: ${Math.round(module.diagnostic().duration / 1000)} s ${module.relativeModuleId}`);
    writeFileSync(process.env['SHOAL_TEST_REPORT']!, `${lines.join('\n')}\n`);
  }
}

const told = (errors: readonly SerializedError[] | undefined): string =>
  errors?.[0]?.message.split('\n')[0] ?? '(no message)';
