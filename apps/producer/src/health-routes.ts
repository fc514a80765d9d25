/** What supervisors and scrapers ask for: answered whatever the others do, and no part of any trace. */
export const HEALTH_ROUTES: ReadonlySet<string | undefined> = new Set([
  '/healthz',
  '/livez',
  '/health',
  '/readyz',
  '/metrics',
]);
