// Chromium for the dashboard's tests, where there is one: headless, with nothing of its own to ask from anywhere.

import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { chromium, type BrowserContext, type Page } from 'playwright-core';

export function findChromium(): string | undefined {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const candidates = ['chromium', 'chromium-browser', 'google-chrome'].flatMap((name) =>
    folders.map((folder) => join(folder, name)),
  );
  return [process.env['SHOAL_TEST_CHROMIUM'] ?? '', ...candidates].find((path) => path !== '' && existsSync(path));
}

export interface TestBrowser {
  readonly context: BrowserContext;
  close(): Promise<void>;
}

export async function openBrowser(program: string): Promise<TestBrowser> {
  const profile = await mkdtemp(join(tmpdir(), 'shoal-chromium-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: program,
    headless: true,
    viewport: { width: 1400, height: 900 },
    args: [
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
  const close = async (): Promise<void> => {
    await context.close();
    await rm(profile, { recursive: true, force: true });
  };
  return { context, close };
}

/** Errors of its scripts and its console, and questions to any other machine; grows while the page is open. */
export function problemsOf(page: Page, url: string): readonly string[] {
  const problems: string[] = [];
  page.on('pageerror', (error) => problems.push(error.message));
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') problems.push(`console: ${message.text()}`);
  });
  page.on('request', (asked) => {
    if (!asked.url().startsWith(url) && !asked.url().startsWith('data:')) problems.push(`asks ${asked.url()}`);
  });
  return problems;
}

/** What axe finds wrong with the page for readers who do not see, or use no mouse: rule and place of each. */
export async function axeFindings(page: Page): Promise<readonly string[]> {
  const source = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  // evaluated over the browser's own protocol, which no policy of the page forbids
  await page.evaluate(source);
  return page.evaluate(async () => {
    const axe: unknown = Reflect.get(globalThis, 'axe');
    const run: unknown = Reflect.get(Object(axe), 'run');
    if (typeof run !== 'function') return ['axe is not there'];
    const { violations } = (await run.call(axe)) as {
      violations: { id: string; impact: string; nodes: { target: string[]; failureSummary: string }[] }[];
    };
    return violations.flatMap(({ id, impact, nodes }) =>
      nodes.map(({ target, failureSummary }) => `${id} (${impact}) at ${target.join(' ')}: ${failureSummary}`),
    );
  });
}
