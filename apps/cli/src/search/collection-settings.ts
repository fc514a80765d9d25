// Settings of a command that works on collections: their folder is the one of the terminal's environment, not of this
// process's.

import type { Settings } from '@shoal/core';
import { collectionsFolder } from '@shoal/similarity';
import { settingsOf } from '../settings.ts';
import type { Terminal } from '../terminal.ts';

export type CollectionSettings = Settings & { readonly collectionsDir: string };

export async function collectionSettings(terminal: Terminal, flags: object): Promise<CollectionSettings> {
  const settings = await settingsOf(terminal, flags);
  return { ...settings, collectionsDir: collectionsFolder(settings, terminal.environment) };
}
