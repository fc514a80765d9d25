import { describe, expect, test } from 'vitest';
import { Failure, ModelServer, NotModelled, Status, type Reply, type ServerSession } from '../index.ts';

interface World {
  now: number;
  readonly server: ModelServer;
  readonly session: ServerSession;
  ask(...args: (string | number)[]): unknown;
}

function worldOf(flavour: 'valkey-9' | 'redis-7.0' = 'valkey-9'): World {
  const world = { now: 1_800_000_000_000 } as { now: number };
  const server = new ModelServer({ now: () => world.now, random: () => 0.5, flavour });
  const session = server.connect(() => undefined);
  return Object.assign(world, {
    server,
    session,
    ask: (...args: (string | number)[]) => told(server.execute(session, args.map(String))),
  });
}

function told(reply: Reply): unknown {
  if (reply instanceof Status) return reply.text;
  if (reply instanceof Failure) return `-${reply.text}`;
  return Array.isArray(reply) ? reply.map((item) => told(item as Reply)) : reply;
}

const unpacked = (bytes: string): unknown =>
  worldOf().ask('EVAL', 'return cjson.encode({ cmsgpack.unpack(ARGV[1]) })', 0, bytes);

const cursorsOf = (flavour: 'valkey-9' | 'redis-7.0'): unknown[] =>
  ['0', ' 5', '', '-1', '+0', '18446744073709551616', '0\0x'].map(
    (text) => [worldOf(flavour).ask('SCAN', text)].flat()[0],
  );

/** A connection by bytes. */
function wire(server: ModelServer): { said: () => string; send: (...args: string[]) => void; close: () => void } {
  let bytes = '';
  const session = server.connect((chunk) => (bytes += chunk.toString('latin1')));
  return {
    said: () => {
      const taken = bytes;
      bytes = '';
      return taken;
    },
    send: (...args) =>
      session.receive(
        Buffer.from(`*${args.length}\r\n${args.map((arg) => `$${arg.length}\r\n${arg}\r\n`).join('')}`, 'latin1'),
      ),
    close: () => session.close(),
  };
}

describe('numbers as each server reads them', () => {
  const bad = '-ERR value is not a valid float';
  const noBound = '-ERR min or max is not a float';

  test.each([
    // as a score, as a bound: in Valkey 9, in Redis 7.0
    ['5', '5', '5', 1, 1],
    ['+.5e1', '5', '5', 1, 1],
    ['0x5', bad, '5', noBound, 1],
    ['-0X1P2', bad, '-4', noBound, 2],
    [' 5', bad, bad, noBound, 1],
    ['', bad, bad, 2, 2],
    ['1e400', bad, bad, 0, 0],
    ['1e-400', bad, bad, 2, 2],
    ['5e-324', '5e-324', '4.9406564584124654e-324', 1, 1],
    ['inf', 'inf', 'inf', 0, 0],
    ['nan', bad, bad, noBound, noBound],
    ['5 ', bad, bad, noBound, noBound],
    ['5\0x', bad, bad, 1, 1],
    ['-0', '-0', '-0', 2, 2],
  ])('%j', (text, valkeyScore, redisScore, valkeyBound, redisBound) => {
    const answers = (flavour: 'valkey-9' | 'redis-7.0'): unknown[] => {
      const world = worldOf(flavour);
      world.ask('ZADD', 'z', 0, 'a', 5, 'b');
      return [world.ask('ZINCRBY', 'k', text, 'm'), world.ask('ZCOUNT', 'z', text, '6')];
    };
    expect(answers('valkey-9')).toEqual([valkeyScore, valkeyBound]);
    expect(answers('redis-7.0')).toEqual([redisScore, redisBound]);
  });

  test('Valkey writes whole numbers as such up to 2^62', () => {
    const world = worldOf();
    world.ask('ZADD', 'z', String(2 ** 62), 'm');
    expect(world.ask('ZSCORE', 'z', 'm')).toBe('4611686018427387904');
  });

  test('a small sorted set keeps no -0, a large one does', () => {
    const world = worldOf();
    world.ask('ZADD', 'small', '-0', 'm');
    world.ask('ZADD', 'large', '-0', 'm'.repeat(65));
    expect([world.ask('ZSCORE', 'small', 'm'), world.ask('ZSCORE', 'large', 'm'.repeat(65))]).toEqual(['0', '-0']);
  });
});

describe('a range by bytes where scores differ', () => {
  test('a small set is looked through from the first member that belongs to it', () => {
    const world = worldOf();
    world.ask('ZADD', 'z', 0, 'b', 1, 'a', 2, 'c', 3, 'bb');
    expect(world.ask('ZRANGEBYLEX', 'z', '[b', '+')).toEqual(['b', 'a', 'c', 'bb']);
    expect(world.ask('ZRANGEBYLEX', 'z', '[b', '(c')).toEqual(['b', 'a']);
    expect(world.ask('ZREVRANGEBYLEX', 'z', '[bb', '[b')).toEqual(['bb', 'c']);
    expect(world.ask('ZLEXCOUNT', 'z', '-', '(b')).toBe(0);
    expect(world.ask('ZREMRANGEBYLEX', 'z', '[a', '[bb')).toBe(2);
  });

  test('in a large one chance decides, so that the model refuses by name', () => {
    const world = worldOf();
    world.ask('ZADD', 'z', 0, 'b'.repeat(65), 0, 'c');
    expect(world.ask('ZLEXCOUNT', 'z', '[b', '+')).toBe(2);
    world.ask('ZADD', 'z', 1, 'a');
    expect(() => world.ask('ZLEXCOUNT', 'z', '[b', '+')).toThrow(/range by bytes in a large sorted set/);
  });
});

describe('MessagePack as servers read it', () => {
  test.each(['\xc1', '\xc4\x01a', '\xc5\0\x01a', '\xc6\0\0\0\x01a', '\xc7\x01\x01a', '\xd4\x01a', '\xd8'])(
    'a mark of later forms of the format is refused: %j',
    (bytes) => expect(unpacked(bytes)).toMatch(/^-ERR user_script:1: Bad data format in input\./),
  );

  test('whole numbers of eight bytes have a sign; a nil key is an error without a line', () => {
    expect(unpacked('\xcf' + '\xff'.repeat(8))).toBe('[-1]');
    expect(unpacked('\x81\xc0\x01')).toMatch(/^-ERR table index is nil/);
    expect(() => unpacked('\x91'.repeat(1_001) + '\x01')).toThrow(/more than 1000 levels/);
  });
});

describe('keys end by the wall clock', () => {
  test('a key is there until its time is over, and a step back of the clock lengthens it', () => {
    const world = worldOf();
    world.ask('SET', 'a', 'x', 'PX', 100);
    world.now += 60;
    expect(world.ask('PTTL', 'a')).toBe(40);
    world.now -= 3_600_000;
    expect(world.ask('PTTL', 'a')).toBe(3_600_040);
    world.now += 3_600_000 + 41;
    expect(world.ask('GET', 'a')).toBeNull();
  });

  test('ids of a stream are read as C reads numbers', () => {
    const world = worldOf();
    expect(world.ask('XADD', 's', ' +5-\t01', 'f', 'v')).toBe('5-1');
    expect(world.ask('XADD', 's', '6\0x', 'f', 'v')).toBe('6-0');
    for (const bad of ['-5', '5-', '', ' ', '5 ', '5-1-1', '18446744073709551616', `${'0'.repeat(127)}9`])
      expect(world.ask('XADD', 's', bad, 'f', 'v')).toMatch(/^-ERR Invalid stream ID/);
    expect(() => world.ask('XADD', 's', '18446744073709551615', 'f', 'v')).toThrow(/beyond 2\^53/);
  });

  test('ids of a stream are read before the key is looked at, or after it, as each command does', () => {
    const world = worldOf();
    world.ask('SET', 'a', 'x');
    expect(world.ask('XADD', 'a', '+', 'f', 'v')).toMatch(/^-ERR Invalid stream ID/);
    expect(world.ask('XREAD', 'STREAMS', 'a', '5-*')).toMatch(/^-WRONGTYPE/);
    expect(world.ask('XDEL', 'none', '5-*')).toBe(0);
    world.ask('XADD', 's', '5-1', 'f', 'v');
    world.ask('XADD', 's', '6-0', 'g', 'w');
    expect(world.ask('XREAD', 'STREAMS', 's', '+')).toEqual([['s', [['6-0', ['g', 'w']]]]]);
    expect(worldOf('redis-7.0').ask('XREAD', 'STREAMS', 's', '+')).toMatch(/^-ERR Invalid stream ID/);
  });

  test('cursors are read as each server reads them', () => {
    const bad = '-ERR invalid cursor';
    expect(cursorsOf('valkey-9')).toEqual(['0', '0', bad, bad, '0', bad, '0']);
    expect(cursorsOf('redis-7.0')).toEqual(['0', bad, '0', '0', '0', bad, '0']);
  });

  test('ids of a stream never go back', () => {
    const world = worldOf();
    expect(world.ask('XADD', 's', '*', 'f', 'v')).toBe('1800000000000-0');
    world.now -= 5_000;
    expect(world.ask('XADD', 's', '*', 'f', 'v')).toBe('1800000000000-1');
  });
});

describe('scripts', () => {
  test('values turn over as documented', () => {
    const { ask } = worldOf();
    expect(ask('EVAL', 'return { 1.9, "a", false, true, { 2, nil, 3 } }', 0)).toEqual([1, 'a', null, 1, [2]]);
    expect(ask('EVAL', 'return { ok = "FINE" }', 0)).toBe('FINE');
    expect(ask('EVAL', 'return redis.error_reply("MY error")', 0)).toBe('-MY error');
    expect(ask('EVAL', 'return redis.call("HMGET", KEYS[1], "a")[1]', 1, 'none')).toBeNull();
    expect(ask('EVAL', 'redis.call("SET", KEYS[1], 0.5) return redis.call("GET", KEYS[1])', 1, 'k')).toBe('0.5');
  });

  test('a call that fails ends the script, a pcall does not', () => {
    const { ask } = worldOf();
    ask('SET', 'k', 'x');
    expect(ask('EVAL', 'return redis.call("LLEN", KEYS[1])', 1, 'k')).toMatch(
      /^-WRONGTYPE .* script: on @user_script:1\.$/,
    );
    expect(ask('EVAL', 'return redis.pcall("LLEN", KEYS[1]).err', 1, 'k')).toMatch(/^WRONGTYPE/);
  });

  test('a script is known until the server starts again', () => {
    const { ask, server } = worldOf();
    const sha = ask('SCRIPT', 'LOAD', 'return 7') as string;
    expect(ask('EVALSHA', sha, 0)).toBe(7);
    server.restart({ forgetMs: 0 });
    const again = server.connect(() => undefined);
    expect(told(server.execute(again, ['EVALSHA', sha, '0']))).toMatch(/^-NOSCRIPT/);
  });
});

describe('connections', () => {
  test('a transaction runs whole, or not at all when what it watched has changed', () => {
    const { server } = worldOf();
    const [one, other] = [wire(server), wire(server)];
    one.send('WATCH', 'a');
    other.send('SET', 'a', '1');
    one.send('MULTI');
    one.send('SET', 'a', '2');
    one.said();
    one.send('EXEC');
    expect(one.said()).toBe('*-1\r\n');
    one.send('MULTI');
    one.send('GET', 'a');
    one.send('EXEC');
    expect(one.said()).toBe('+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n');
  });

  test('who blocks is served in order when something comes, or told that nothing did', () => {
    const world = worldOf();
    const [first, second, third] = [wire(world.server), wire(world.server), wire(world.server)];
    first.send('BZPOPMIN', 'z', '2');
    second.send('BZPOPMIN', 'z', '1.5');
    second.send('PING');
    third.send('ZADD', 'z', '1', 'm');
    expect(first.said()).toBe('*3\r\n$1\r\nz\r\n$1\r\nm\r\n$1\r\n1\r\n');
    expect(second.said()).toBe('');
    expect(world.server.nextWake()).toBe(world.now + 1_500);
    world.now += 1_500;
    world.server.wake();
    expect(second.said()).toBe('*-1\r\n+PONG\r\n');
    expect(world.server.nextWake()).toBeUndefined();
  });

  test('what is published reaches its subscribers, unless it is dropped on the way', () => {
    const { server, ask } = worldOf();
    const reader = wire(server);
    reader.send('SUBSCRIBE', 'news');
    reader.said();
    expect(ask('PUBLISH', 'news', 'a')).toBe(1);
    server.faults.dropPublished = () => true;
    expect(ask('PUBLISH', 'news', 'b')).toBe(1);
    expect(reader.said()).toBe('*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\na\r\n');
  });

  test('RESP3 is refused as a server does that has none', () => {
    expect(worldOf().ask('HELLO', 3)).toBe('-NOPROTO unsupported protocol version');
  });
});

describe('an ill server', () => {
  test('a full disk refuses writes, and scripts that do not say that they write nothing', () => {
    const { ask, server } = worldOf();
    server.faults.refuse = 'misconf';
    expect(ask('SET', 'a', 1)).toMatch(/^-MISCONF/);
    expect(ask('GET', 'a')).toBeNull();
    expect(ask('EVAL', '#!lua\nreturn 1', 0)).toMatch(/^-MISCONF/);
    expect(ask('EVAL', '#!lua flags=no-writes\nreturn 1', 0)).toBe(1);
    expect(ask('EVAL', 'return redis.call("SET", "a", 1)', 0)).toMatch(/^-MISCONF/);
  });

  test('a full memory refuses what takes memory, unless a script has leave', () => {
    const { ask, server } = worldOf();
    ask('SET', 'a', 1);
    server.faults.refuse = 'oom';
    expect(ask('SET', 'a', 1)).toMatch(/^-OOM/);
    expect(ask('EVAL', '#!lua flags=allow-oom\nreturn redis.call("SET", "a", 2)', 0)).toBe('OK');
    expect(ask('EVAL', 'return redis.call("SET", "a", 1)', 0)).toMatch(/^-OOM/);
    expect(ask('DEL', 'a')).toBe(1);
  });

  test('a replica takes no writes, and one that loads answers next to nothing', () => {
    const { ask, server } = worldOf();
    server.faults.refuse = 'readonly';
    expect(ask('SET', 'a', 1)).toMatch(/^-READONLY/);
    server.faults.refuse = 'loading';
    expect(ask('GET', 'a')).toMatch(/^-LOADING/);
    expect(ask('INFO')).toMatch(/\r\nloading:1\r\n/);
  });

  test('a restart forgets the youngest writes, and only those', () => {
    const world = worldOf();
    const { ask, server } = world;
    for (let second = 0; second < 8; second++) {
      ask('EVAL', 'redis.call("RPUSH", KEYS[1], ARGV[1]) return redis.call("ZRANDMEMBER", "none")', 1, 'list', second);
      ask('SET', `t${second}`, 'x', 'PX', 6_500);
      world.now += 1_000;
    }
    const before = ask('LRANGE', 'list', 0, -1) as string[];
    server.restart({ forgetMs: 1_500 });
    const session = server.connect(() => undefined);
    const after = told(server.execute(session, ['LRANGE', 'list', '0', '-1']));
    expect(before).toHaveLength(8);
    expect(after).toEqual(before.slice(0, 7));
    expect(told(server.execute(session, ['PTTL', 't6']))).toBe(4_500);
    expect(told(server.execute(session, ['EXISTS', 't7', 't0']))).toBe(0);
    expect(() => server.restart({ forgetMs: 5_000 })).toThrow(/at most 2000 ms/);
  });
});

test('what the model does not have is thrown by name', () => {
  const { ask } = worldOf();
  expect(() => ask('GEOADD', 'a', 1, 2, 'x')).toThrow(NotModelled);
  expect(() => ask('CONFIG', 'SET', 'a', 'b')).toThrow(/CONFIG SET/);
});
