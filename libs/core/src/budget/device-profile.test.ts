import { expect, test } from 'vitest';
import { decodeDeviceProfile, encodeDeviceProfile, type DeviceProfile } from './device-profile.ts';

const key = {
  graphHash: '0123456789abcdef',
  provider: 'cpu',
  precision: 'fp32',
  deviceKind: 'AMD EPYC, 2 threads',
} as const;
const profile: DeviceProfile = {
  v: 1,
  key,
  kneeTokens: 1024,
  measuredAt: '2026-11-21T20:00:00.000Z',
  memory: {
    loadedBytes: 200e6,
    floorBytes: 2e6,
    slackBytes: 3e6,
    perToken: [{ width: 128, bytes: 25_000 }],
    arena: 'exact',
  },
};

test('a profile comes back as it was stored', () => {
  expect(decodeDeviceProfile(encodeDeviceProfile(profile), key)).toEqual({ profile });
});

test.each([
  [
    'another graph',
    { ...key, graphHash: 'fedcba9876543210' },
    'its graphHash is 0123456789abcdef, not fedcba9876543210',
  ],
  ['another device', { ...key, deviceKind: 'NVIDIA H200' }, 'its deviceKind is AMD EPYC, 2 threads, not NVIDIA H200'],
  ['another precision', { ...key, precision: 'int8' as const }, 'its precision is fp32, not int8'],
])('a profile of %s is refused with the reason', (_, asked, reason) => {
  expect(decodeDeviceProfile(encodeDeviceProfile(profile), asked)).toEqual({ reason });
});

test.each([
  ['', /not a device profile: the whole of it/],
  ['{"v":2}', /not a device profile: v/],
  [JSON.stringify({ ...profile, memory: { ...profile.memory, loadedBytes: -1 } }), /memory.loadedBytes/],
  [JSON.stringify({ ...profile, kneeTokens: 0 }), /kneeTokens/],
])('what is no profile is refused and said: %s', (text, reason) => {
  expect(decodeDeviceProfile(text, key)).toEqual({ reason: expect.stringMatching(reason) });
});
