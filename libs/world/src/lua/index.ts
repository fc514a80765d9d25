export { compileScript, type CompiledScript, type ScriptHost } from './compile.ts';
export { ScriptRandom } from './base-library.ts';
export { LuaError, LuaTable, LuaUserdata, NotModelled, display, first, tableOf, typeOf } from './values.ts';
export type { LuaFunction, LuaResult, LuaValue } from './values.ts';
