// HEALTHCHECK of the images: 0 when the route that HEALTH_URL names answers with 2xx within four seconds, else 1 and a
// sentence. Which route a process has is its image's business, or compose's.

const url = process.env.HEALTH_URL;
try {
  const { status, ok } = await fetch(url, { signal: AbortSignal.timeout(4_000) });
  if (!ok) throw new Error(`it answered with ${status}`);
} catch (error) {
  console.error(`${url} is not healthy: ${error.cause?.message ?? error.message}`);
  process.exit(1);
}
