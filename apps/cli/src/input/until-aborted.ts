// Reading standard input or a pipe can wait for ever; an interruption must not.

/** What `promise` comes to, or a rejection with the signal's reason as soon as it is aborted. */
export async function untilAborted<Value>(promise: Promise<Value>, signal: AbortSignal): Promise<Value> {
  promise.catch(() => undefined); // of one that was aborted before it came here nobody else hears
  signal.throwIfAborted();
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = (): void => reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}
