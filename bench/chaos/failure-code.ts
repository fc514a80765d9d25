// What a history of chaos calls the failure of a job. No job may fail for want of its input while servers forget nothing,
// but a payload server promises nothing: what was lost there has a code of its own.

import { parseFailedReason } from '@shoal/contract';

export function failureCode(failedReason: string | undefined): string {
  const { code, message } = parseFailedReason(failedReason ?? '');
  return code === 'INPUT_LOST' && message.includes('payload server') ? 'PAYLOAD_LOST' : code;
}
