// Looked at when the package is loaded: on an older Node it would connect, and fail in the middle of the first call.

/** Throws where a part of the language is missing that every call needs. */
export function refuseOldNode(): void {
  if (typeof Promise.withResolvers !== 'function')
    throw new Error(`@shoal/client needs Node 22.12 or later, and this is ${process.version}`);
}
