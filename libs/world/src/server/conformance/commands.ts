// Random commands on a few keys, so that types meet: what the model has, but for what is chance or the hour.

import type { Random } from './random.ts';

const KEYS = ['a', 'b', 'c', 'd', 'e'];
const VALUES = ['', 'x', 'y', 'z', '1', '2', '-3', '10', 'ab', 'abc'];
const NUMBERS = ['0', '1', '-1', '2', '3', '-2', '5', '10', '-100', '100', 'x', '1.5'];
const SCORES = [
  '0',
  '1',
  '-1',
  '2',
  '2.5',
  '1e3',
  'inf',
  '-inf',
  '0.1',
  '1e17',
  '3.0',
  'nan',
  'x',
  '-9007199187632128',
  '0x10',
  ' 5',
  '1e400',
  '1e-400',
  '-0',
  '',
];
const BOUNDS = ['-inf', '+inf', '0', '(0', '1', '(1', '2', '(2.5', '1000', 'x', '', '(', '0x2', ' 1', '1e400'];
const LEXICAL = ['-', '+', '[a', '(a', '[x', '(y', '[z', 'x'];

const IDS = ['5-1', '5-2', '6', ' 5', '+5-1', '5- +1', '-5', '5-', '', '$', '-', '+', '5-*', '07-01', '5-1\0x'];

/** MessagePack: all kinds of marks, whole and cut off, and those that servers do not know. */
const PACKED = (
  '7f ff 82a16101a162c0 9301c2c3 a3616263 81c001 9201 c1 c40161 c5000161 c60000000161 c7010161 d40161 d8 ca3f800000 ' +
  'cb3ff8000000000000 ccff cdffff ceffffffff cfffffffffffffffff d080 d18000 d280000000 d3ff00000000000000 d90161 ' +
  'da000161 db0000000161 dc000105 dd0000000105 de00010506 df'
)
  .split(' ')
  .map((digits) => Buffer.from(digits, 'hex').toString('latin1'));

/**
 * What stands behind a command: key, value, number, score, real (a score whose text has no sign that is chance), bound, lex, packed, id or ms; a text in capitals is itself. A command
 * may have several forms.
 */
const FORMS: readonly (readonly [string, ...string[]])[] = [
  ['SET', 'key', 'value'],
  ['SET', 'key', 'value', 'NX'],
  ['SET', 'key', 'value', 'XX', 'GET'],
  ['SET', 'key', 'value', 'PX', 'ms'],
  ['SET', 'key', 'value', 'KEEPTTL'],
  ['SET', 'key', 'value', 'EX', 'number'],
  ['SETNX', 'key', 'value'],
  ['SETEX', 'key', 'number', 'value'],
  ['GET', 'key'],
  ['GETDEL', 'key'],
  ['GETSET', 'key', 'value'],
  ['GETEX', 'key', 'PERSIST'],
  ['MGET', 'key', 'key', 'key'],
  ['MSET', 'key', 'value', 'key', 'value'],
  ['APPEND', 'key', 'value'],
  ['STRLEN', 'key'],
  ['GETRANGE', 'key', 'number', 'number'],
  ['SETRANGE', 'key', 'number', 'value'],
  ['INCR', 'key'],
  ['DECRBY', 'key', 'number'],
  ['INCRBY', 'key', 'number'],
  ['DEL', 'key', 'key'],
  ['UNLINK', 'key'],
  ['EXISTS', 'key', 'key'],
  ['TYPE', 'key'],
  ['PEXPIRE', 'key', 'ms'],
  ['PEXPIRE', 'key', 'ms', 'NX'],
  ['PEXPIRE', 'key', 'ms', 'GT'],
  ['EXPIRE', 'key', 'number'],
  ['PTTL', 'key'],
  ['TTL', 'key'],
  ['PEXPIRETIME', 'key'],
  ['PERSIST', 'key'],
  ['RENAME', 'key', 'key'],
  ['RENAMENX', 'key', 'key'],
  ['COPY', 'key', 'key', 'REPLACE'],
  ['KEYS', '*'],
  ['KEYS', '[ab]*'],
  ['DBSIZE'],
  ['HSET', 'key', 'value', 'value', 'value', 'value'],
  ['HSET', 'key', 'value', 'number'],
  ['HMSET', 'key', 'value', 'value'],
  ['HSETNX', 'key', 'value', 'value'],
  ['HGET', 'key', 'value'],
  ['HMGET', 'key', 'value', 'value'],
  ['HGETALL', 'key'],
  ['HDEL', 'key', 'value', 'value'],
  ['HEXISTS', 'key', 'value'],
  ['HLEN', 'key'],
  ['HSTRLEN', 'key', 'value'],
  ['HINCRBY', 'key', 'value', 'number'],
  ['LPUSH', 'key', 'value', 'value'],
  ['RPUSH', 'key', 'value', 'value', 'value'],
  ['LPUSHX', 'key', 'value'],
  ['RPUSHX', 'key', 'value'],
  ['LPOP', 'key'],
  ['RPOP', 'key'],
  ['RPOP', 'key', 'number'],
  ['LLEN', 'key'],
  ['LRANGE', 'key', 'number', 'number'],
  ['LINDEX', 'key', 'number'],
  ['LSET', 'key', 'number', 'value'],
  ['LREM', 'key', 'number', 'value'],
  ['LTRIM', 'key', 'number', 'number'],
  ['LPOS', 'key', 'value'],
  ['LPOS', 'key', 'value', 'RANK', 'number', 'COUNT', 'number', 'MAXLEN', 'number'],
  ['LINSERT', 'key', 'BEFORE', 'value', 'value'],
  ['RPOPLPUSH', 'key', 'key'],
  ['LMOVE', 'key', 'key', 'LEFT', 'RIGHT'],
  ['SADD', 'key', 'value', 'value', 'value'],
  ['SREM', 'key', 'value', 'value'],
  ['SCARD', 'key'],
  ['SISMEMBER', 'key', 'value'],
  ['SMISMEMBER', 'key', 'value', 'value'],
  ['SMEMBERS', 'key'],
  ['ZADD', 'key', 'score', 'value', 'score', 'value'],
  ['ZADD', 'key', 'GT', 'CH', 'score', 'value'],
  ['ZADD', 'key', 'LT', 'score', 'value'],
  ['ZADD', 'key', 'NX', 'score', 'value'],
  ['ZADD', 'key', 'XX', 'CH', 'score', 'value'],
  ['ZADD', 'key', 'INCR', 'score', 'value'],
  ['ZADD', 'key', 'NX', 'GT', 'score', 'value'],
  ['ZINCRBY', 'key', 'score', 'value'],
  ['ZREM', 'key', 'value', 'value'],
  ['ZCARD', 'key'],
  ['ZSCORE', 'key', 'value'],
  ['ZMSCORE', 'key', 'value', 'value'],
  ['ZCOUNT', 'key', 'bound', 'bound'],
  ['ZLEXCOUNT', 'key', 'lex', 'lex'],
  ['ZRANGE', 'key', 'number', 'number', 'WITHSCORES'],
  ['ZRANGE', 'key', 'number', 'number', 'REV'],
  ['ZRANGE', 'key', 'bound', 'bound', 'BYSCORE', 'LIMIT', 'number', 'number'],
  ['ZRANGE', 'key', 'lex', 'lex', 'BYLEX'],
  ['ZREVRANGE', 'key', 'number', 'number'],
  ['ZRANGEBYSCORE', 'key', 'bound', 'bound', 'WITHSCORES', 'LIMIT', 'number', 'number'],
  ['ZREVRANGEBYSCORE', 'key', 'bound', 'bound'],
  ['ZRANGEBYLEX', 'key', 'lex', 'lex', 'LIMIT', 'number', 'number'],
  ['ZREVRANGEBYLEX', 'key', 'lex', 'lex'],
  ['ZRANK', 'key', 'value'],
  ['ZREVRANK', 'key', 'value'],
  ['ZPOPMIN', 'key'],
  ['ZPOPMAX', 'key', 'number'],
  ['ZREMRANGEBYSCORE', 'key', 'bound', 'bound'],
  ['ZREMRANGEBYRANK', 'key', 'number', 'number'],
  ['ZREMRANGEBYLEX', 'key', 'lex', 'lex'],
  ['XADD', 'key', '*', 'value', 'value'],
  ['XADD', 'key', 'NOMKSTREAM', 'MAXLEN', '=', 'number', '*', 'value', 'value'],
  ['XADD', 'key', 'MAXLEN', '~', 'number', '*', 'value', 'value'],
  ['XADD', 'key', '5-1', 'value', 'value'],
  ['XLEN', 'key'],
  ['XTRIM', 'key', 'MAXLEN', 'number'],
  ['XTRIM', 'key', 'MAXLEN', '~', 'number'],
  ['XRANGE', 'key', '-', '+'],
  ['XREVRANGE', 'key', '+', '-', 'COUNT', 'number'],
  ['XDEL', 'key', 'id'],
  ['XADD', 'key', 'id', 'value', 'value'],
  ['XRANGE', 'key', 'id', 'id'],
  ['XREAD', 'COUNT', '2', 'STREAMS', 'key', 'id'],
  ['GET', 'key', 'value'],
  ['HSET', 'key', 'value'],
  ['NONSENSE', 'value', 'value'],
  ['EVALSHA', '0000000000000000000000000000000000000000', '0'],
  ['EVAL', 'return 1', '5', 'key'],
  ['EVAL', 'return redis.call("GET")', '0'],
  ['EVAL', 'return redis.call("NONSENSE", 1)', '0'],
  ['EVAL', 'return redis.call("SUBSCRIBE", "x")', '0'],
  ['EVAL', '#!lua flags=no-writes\nreturn redis.call("SET", KEYS[1], 1)', '1', 'key'],
  ['EVAL', 'return redis.call("GET", KEYS[1])', '1', 'key'],
  ['EVAL', 'return redis.pcall("LLEN", KEYS[1])', '1', 'key'],
  ['EVAL', 'return { tonumber(ARGV[1]), 1.7, -1.7, "a", { ok = "fine" }, false, true }', '0', 'score'],
  [
    'EVAL',
    'redis.call("SET", KEYS[1], tonumber(ARGV[1]) or 0.1) return redis.call("GET", KEYS[1])',
    '1',
    'key',
    'real',
  ],
  ['EVAL', 'return cjson.encode({ cmsgpack.unpack(ARGV[1]) })', '0', 'packed'],
  ['EVAL', 'return tostring(tonumber(ARGV[1])) .. ":" .. string.format("%.3f", tonumber(ARGV[1]) or 0)', '0', 'score'],
];

/** Eight to sixteen commands. */
export function commandSequence(random: Random): string[][] {
  return Array.from({ length: 8 + random.below(9) }, () => {
    const [name, ...words] = random.of(FORMS);
    return [name, ...words.map((word) => filled(word, random))];
  });
}

function filled(word: string, random: Random): string {
  switch (word) {
    case 'key':
      return random.of(KEYS);
    case 'value':
      return random.of(VALUES);
    case 'number':
      return random.of(NUMBERS);
    case 'score':
      return random.of(SCORES);
    case 'real':
      return random.of(SCORES.filter((text) => text !== 'nan'));
    case 'bound':
      return random.of(BOUNDS);
    case 'lex':
      return random.of(LEXICAL);
    case 'id':
      return random.of(IDS);
    case 'packed':
      return random.of(PACKED);
    case 'ms':
      return random.of(['60000', '600000', '100000', '-5', '0', 'x']);
    default:
      return word;
  }
}
