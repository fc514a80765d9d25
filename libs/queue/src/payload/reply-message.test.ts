import { expect, test } from 'vitest';
import { parseReply } from './reply-message.ts';

test('a message is read as it is documented, and strangers are not understood', () => {
  expect(parseReply('{"v":1,"queue":"q","completed":["a"]}')).toEqual({ queue: 'q', completed: ['a'], failed: [] });
  for (const text of ['', 'null', '[]', '{"v":2,"queue":"q"}', '{"v":1}', '{"v":1,"queue":3}'])
    expect(parseReply(text)).toBeUndefined();
  expect(parseReply('{"v":1,"queue":"q","completed":["a",3],"failed":"x"}')).toEqual({
    queue: 'q',
    completed: ['a'],
    failed: [],
  });
});
