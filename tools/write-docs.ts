// Writes the generated pages: docs/settings.md, docs/metrics.md, docs/scripts.md, docs/jobs.schema.json and
// docs/drills.md, docs/fault-matrix.md, bench/results/README.md, the table of alerts, the boards of infra/grafana, and what the chart of infra/
// holds of the rest of the project. Run by `npm run docs`.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { jobSchemaFile } from '../libs/contract/src/job-schema.ts';
import { settingsPage } from '../libs/core/src/settings/settings-page.ts';
import { metricsPage } from '../libs/ops/src/catalogue/metrics-page.ts';
import { writeChartFiles } from './infra/chart-files.ts';
import { drillsPage } from './drills/drills-page.ts';
import { faultMatrixPage } from './fault-matrix-page.ts';
import { resultsPage } from './results-page.ts';
import { scriptsPage } from './scripts-page.ts';
import { withAlertTable } from './watch/alert-table.ts';
import { boardFiles } from './watch/boards/boards.ts';

writeFileSync(new URL('../docs/settings.md', import.meta.url), settingsPage());
writeFileSync(new URL('../docs/metrics.md', import.meta.url), metricsPage());
writeFileSync(new URL('../docs/jobs.schema.json', import.meta.url), jobSchemaFile());
writeFileSync(new URL('../docs/scripts.md', import.meta.url), scriptsPage());
writeFileSync(new URL('../bench/results/README.md', import.meta.url), resultsPage());
writeFileSync(new URL('../docs/fault-matrix.md', import.meta.url), faultMatrixPage());
writeFileSync(new URL('../docs/drills.md', import.meta.url), drillsPage());

const operations = new URL('../docs/operations.md', import.meta.url);
writeFileSync(operations, withAlertTable(readFileSync(operations, 'utf8')));
for (const { name, content } of boardFiles())
  writeFileSync(new URL(`../infra/grafana/${name}`, import.meta.url), content);
writeChartFiles(join(import.meta.dirname, '..'));
