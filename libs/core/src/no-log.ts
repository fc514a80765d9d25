// A logger that writes nothing, for whoever is not asked to tell.

import type { Logger } from './ports.ts';

export const noLog: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
};
