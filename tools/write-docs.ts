// Writes the generated pages: docs/settings.md, docs/metrics.md, docs/scripts.md, docs/jobs.schema.json and
// bench/results/README.md, and what the chart of infra/ holds of the rest of the project. Run by `npm run docs`.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { jobSchemaFile } from '../libs/contract/src/job-schema.ts';
import { settingsPage } from '../libs/core/src/settings/settings-page.ts';
import { metricsPage } from '../libs/ops/src/catalogue/metrics-page.ts';
import { writeChartFiles } from './infra/chart-files.ts';
import { resultsPage } from './results-page.ts';
import { scriptsPage } from './scripts-page.ts';

writeFileSync(new URL('../docs/settings.md', import.meta.url), settingsPage());
writeFileSync(new URL('../docs/metrics.md', import.meta.url), metricsPage());
writeFileSync(new URL('../docs/jobs.schema.json', import.meta.url), jobSchemaFile());
writeFileSync(new URL('../docs/scripts.md', import.meta.url), scriptsPage());
writeFileSync(new URL('../bench/results/README.md', import.meta.url), resultsPage());
writeChartFiles(join(import.meta.dirname, '..'));
