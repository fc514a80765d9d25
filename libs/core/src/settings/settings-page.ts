// The reference page of all settings, made from the schema. `npm run docs` writes it; a test fails when it is stale.

import { environmentName, flagName } from './config.ts';
import { settingsSchema } from './schema.ts';

export function settingsPage(): string {
  const rows = Object.entries(settingsSchema.shape).map(([key, type]) => {
    const byDefault = type.safeParse(undefined);
    const shown = byDefault.success && byDefault.data !== undefined ? `\`${String(byDefault.data)}\`` : '–';
    return `| \`${key}\` | \`${environmentName(key)}\` | \`${flagName(key)}\` | ${shown} | ${type.description ?? ''} |`;
  });
  return `# Settings

Generated from libs/core/src/settings/schema.ts by \`npm run docs\`; do not edit.

A setting is a flag, an environment variable, a line of \`shoal.config.json\` in the working directory or of
\`~/.config/shoal/config.json\` (\`$XDG_CONFIG_HOME/shoal/config.json\`). Flag beats environment beats the folder's file beats
the home file beats default. The file of a folder may choose no path (\`cacheDir\`, \`modelsDir\`, \`collectionsDir\`,
\`cudaLibrary\`, \`cells\`, \`redisCa\`, \`redisCert\`, \`redisKey\`, \`redisPasswordFile\`, \`batchDir\`, \`batchS3Endpoint\`, \`webhookSecret\`), and a queue server or an address that it chose is said each time
([security.md](security.md)). All problems are reported at once, before anything connects. \`REDIS_URL\` and
\`LOG_LEVEL\` are honoured under their own names; \`SHOAL_FORCE_CPU=1\` makes every worker a CPU worker.

| key | environment | flag | default | meaning |
| --- | --- | --- | --- | --- |
${rows.join('\n')}
`;
}
