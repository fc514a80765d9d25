/** What `work` gives, or undefined as soon as the signal is aborted. Leaves nothing at the signal behind. */
export function unlessAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    const stopWaiting = (): void => resolve(undefined);
    if (signal.aborted) stopWaiting();
    signal.addEventListener('abort', stopWaiting, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stopWaiting));
  });
}
