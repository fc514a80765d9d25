// Writes the generated pages of docs/. Run by `npm run docs`.

import { writeFileSync } from 'node:fs';
import { settingsPage } from '@shoal/core';

writeFileSync(new URL('../docs/settings.md', import.meta.url), settingsPage());
