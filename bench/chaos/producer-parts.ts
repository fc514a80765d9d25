// What chaos takes from the queue library, and a plain connection for what no part of it tells.

import { closeConnection, openConnection, untilReady, type Redis } from '@shoal/queue';

export {
  JobProducer,
  PayloadServers,
  ResultReader,
  processCounts,
  whyOfJob,
  type Again,
  type NewJob,
  type Redis,
} from '@shoal/queue';

export async function connectRaw(url: string): Promise<Redis> {
  const connection = openConnection({ url, name: 'chaos' });
  try {
    await untilReady(connection, url);
    return connection;
  } catch (error) {
    await closeConnection(connection);
    throw error;
  }
}
