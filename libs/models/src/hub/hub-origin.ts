// Where a pulled model came from, as it stands in its import.json: which repository, which commit, and what the hub
// said of each file that was taken.

import { CheckedJson } from '../checked-json.ts';
import type { HubFile } from './hub-client.ts';

export interface HubOrigin {
  /** ORG/NAME as the hub spells it. */
  readonly repository: string;
  readonly commit: string;
  /** The branch or tag that was asked for when it was pulled; a commit where one was named. */
  readonly asked: string;
  readonly licence: string;
  /** Whose adapter was merged, of a model that has one for each task. */
  readonly task?: string;
  /** As they are on the hub; some are written anew by the import (docs/models.md). */
  readonly files: readonly HubFile[];
}

export function parseHubOrigin(json: CheckedJson): HubOrigin {
  return {
    repository: json.string('repository'),
    commit: json.string('commit'),
    asked: json.string('asked'),
    licence: json.string('licence'),
    ...(json.has('task') && { task: json.string('task') }),
    files: json.list('files').map((value, at) => {
      const file = CheckedJson.of(value, `${json.where}: file ${at}`);
      const digest = file.object('digest');
      return {
        path: file.string('path'),
        bytes: file.integer('bytes'),
        digest: {
          algorithm: digest.string('algorithm') === 'sha256' ? 'sha256' : 'git-sha1',
          hex: digest.string('hex'),
        },
      };
    }),
  };
}
