// The client of pg alone: without its pool, which nobody here needs.

declare module 'pg/lib/client.js' {
  import { Client } from 'pg';
  export default Client;
}
