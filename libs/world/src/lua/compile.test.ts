import { describe, expect, test } from 'vitest';
import { LuaError, LuaTable, NotModelled, compileScript, first, type LuaValue, type ScriptHost } from './index.ts';

function hostOf(): ScriptHost {
  return {
    line: 0,
    turns: 0,
    call: (...args) => args.join(' '),
    pcall: (...args) => args.join(' '),
    others: {},
  };
}

/** What a script answers, tables as lists. */
function run(text: string, args: string[] = []): unknown {
  const show = (value: LuaValue): unknown => (value instanceof LuaTable ? value.list.map(show) : value);
  return show(first(compileScript(text)(hostOf(), new LuaTable(), new LuaTable(args))));
}

describe('numbers and strings are Lua 5.1’s', () => {
  test.each([
    ['return tostring(2^53)', '9.007199254741e+15'],
    ['return tostring(100000000000000)', '1e+14'],
    ['return tostring(1e15/10)', '1e+14'],
    ['return 10 .. ""', '10'],
    ['return tostring(0.1)', '0.1'],
    ['return tostring(1/3)', '0.33333333333333'],
    ['return tostring(-1/0)', '-inf'],
    ['return "10" + 5', 15],
    ['return -7 % 3', 2],
    ['return math.max(1, 0 / 0)', 1],
    ['return string.format("%.0f", 2.5)', '2'],
    ['return string.format("%.17g", 438417946.150390625)', '438417946.15039062'],
    ['return 7 % -3', -2],
    // an integer of C: what does not fit is the smallest one, an int has the lower 32 bits
    ['return string.sub("abc", 1, 1/0)', ''],
    ['return string.sub("abc", 1, 0/0)', ''],
    ['return string.sub("abc", 1, 2^31)', 'abc'],
    ['return string.rep("a", 1/0) .. string.rep("b", 2^32 + 1)', 'b'],
    ['return tonumber("0x10")', 16],
    ['return tonumber(" 12 ")', 12],
    ['return tonumber("12a")', undefined],
    ['return tonumber("z", 36)', 35],
    ['return tonumber("inf")', Infinity],
    ['return string.format("%.0f", 9007199187632128)', '9007199187632128'],
    ['return string.format("%5.1f|%-4s|%04d|%x", 3.14159, "a", 7, 255)', '  3.1|a   |0007|ff'],
    ['return ("a"):rep(3)', 'aaa'],
    ['return #"\\0ab"', 3],
    ['return "a" < "b"', true],
    ['return string.sub("hello", -3, -2)', 'll'],
  ])('%s', (text, value) => expect(run(text)).toEqual(value));
});

describe('patterns are Lua’s', () => {
  test.each([
    ['return string.match("key: value", "^(%w+):%s*(%w+)$")', 'key'],
    ['return string.find("a.b", ".", 1, true)', 2],
    ['return string.find("abc", "b")', 2],
    ['return string.match("[[x]]", "%[(%b[])%]")', '[x]'],
    ['return string.match("THE (quick) fox", "%((%a+)%)")', 'quick'],
    ['return (string.gsub("hello world", "o", "0"))', 'hell0 w0rld'],
    ['return (string.gsub("abc", "%w", "%0%0"))', 'aabbcc'],
    ['return (string.gsub("$name", "%$(%w+)", { name = "x" }))', 'x'],
    ['return string.match("abc", "()c")', 3],
    ['return string.match("  x  ", "^%s*(.-)%s*$")', 'x'],
    ['local n = 0 for w in string.gmatch("a b c", "%a") do n = n + 1 end return n', 3],
    ['return string.match("THE", "%f[%a]%a+")', 'THE'],
    ['return string.match("aab", "a-b")', 'aab'],
  ])('%s', (text, value) => expect(run(text)).toEqual(value));
});

describe('control, tables and several values', () => {
  test.each([
    ['local a, b = (function() return 1, 2 end)() return { a, b }', [1, 2]],
    ['local function f() return 1, 2 end return { f(), f() }', [1, 1, 2]],
    ['local function f() return 1, 2 end return { (f()) }', [1]],
    ['local function f(...) return select("#", ...) end return f(nil, nil)', 2],
    ['local function f() end return select("#", f())', 0],
    ['local a, b = 1, 2 a, b = b, a return { a, b }', [2, 1]],
    ['local t = {} for i = 10, 1, -3 do t[#t + 1] = i end return t', [10, 7, 4, 1]],
    ['local t = { 3, 1, 2 } table.sort(t, function(a, b) return a > b end) return t', [3, 2, 1]],
    ['local t = { 1, 2, 3 } table.remove(t, 1) table.insert(t, 1, 9) return t', [9, 2, 3]],
    ['local s = 0 for k, v in pairs({ 1, 2, x = 3 }) do s = s + v end return s', 6],
    ['local f = {} for i = 1, 3 do f[i] = function() return i end end return f[1]() + f[3]()', 4],
    ['local i = 0 repeat local done = i == 2 i = i + 1 until done return i', 3],
    ['local i = 0 while true do i = i + 1 if i > 4 then break end end return i', 5],
    ['return nil and 1 or 2', 2],
    ['return false == nil', false],
    ['return not nil == true', true],
  ])('%s', (text, value) => expect(run(text)).toEqual(value));

  test('what is raised is caught by pcall, with the line of a text', () => {
    expect(run('local ok, e = pcall(function() error("x") end) return e')).toBe('user_script:1: x');
    expect(run('local ok, e = pcall(function() error({ err = "E" }) end) return e.err')).toBe('E');
    expect(run('local ok, e = pcall(function() local t t.x = 1 end) return e')).toMatch(/attempt to index local 't'/);
    expect(run('return (pcall(function() return 1 < "2" end))')).toBe(false);
  });

  test('a table that is too long cannot be unpacked', () => {
    const script = 'local t = {} for i = 1, 7999 do t[i] = i end return select("#", unpack(t, 1, tonumber(ARGV[1])))';
    expect(run(script, ['7997'])).toBe(7997);
    expect(() => run(script, ['7998'])).toThrow(LuaError);
  });
});

describe('cjson and cmsgpack are Redis’', () => {
  test.each([
    ['return cjson.encode({ 1, "a/b", true, cjson.null })', String.raw`[1,"a\/b",true,null]`],
    ['return cjson.encode({})', '{}'],
    ['return cjson.encode({ a = 0.1 })', '{"a":0.1}'],
    [String.raw`return cjson.decode('{"a":{"b":[1,2,"\\u00e9"]}}').a.b[3]`, '\u00c3\u00a9'],
    ['return cjson.decode("[null]")[1] == cjson.null', true],
    ['return type(cjson.null)', 'userdata'],
    ['return cmsgpack.unpack(ARGV[1]).a', 7],
  ])('%s', (text, value) => expect(run(text, ['\u0081\u00a1a\u0007'])).toEqual(value));

  test.each(['{', '[1,', '{"a"}', '{"a":tru}', '"abc', '[1] x', ''])('%s is refused', (json) =>
    expect(run('return (pcall(cjson.decode, ARGV[1]))', [json])).toBe(false),
  );
});

test.each([
  'return bit.band(1, 2)',
  'return struct.pack("b", 1)',
  'return cjson.decode_max_depth(3)',
  'setmetatable({}, {})',
  'return string.dump(1)',
])('what is not modelled is refused by name: %s', (text) => expect(() => compileScript(text)).toThrow(NotModelled));

test('a global that nobody made is an error of the script, and none can be made', () => {
  expect(() => run('return nothing')).toThrow(/nonexistent global variable 'nothing'/);
  expect(() => run('x = 1')).toThrow(/readonly table/);
});

test.each([
  'for at = 1, 2^31 do end',
  'while true do end',
  'repeat until false',
  'for at in function() return 1 end do end',
  'for one = 1, 1000 do for other = 1, 1000 do end end',
])('what keeps a server busy is not modelled: %s', (text) => {
  expect(() => run(text)).toThrow(/more than 200000 turns/);
});
