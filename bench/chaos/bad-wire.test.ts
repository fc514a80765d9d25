import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { BadWire } from './bad-wire.ts';

/** A server that says everything twice, and what it heard. */
async function startEcho(): Promise<{ readonly url: string; readonly heard: string[] }> {
  const heard: string[] = [];
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => {
      heard.push(String(chunk));
      socket.write(chunk);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  return { url: `redis://127.0.0.1:${(server.address() as AddressInfo).port}`, heard };
}

async function open(wire: BadWire, name: string): Promise<Socket> {
  const socket = connect(Number(new URL(wire.url).port), '127.0.0.1');
  socket.on('error', () => undefined);
  onTestFinished(() => void socket.destroy());
  await ask(socket, `*3\r\n$6\r\nclient\r\n$7\r\nSETNAME\r\n$${name.length}\r\n${name}\r\n`);
  return socket;
}

async function ask(socket: Socket, text: string): Promise<string> {
  const heard = once(socket, 'data');
  socket.write(text);
  return String((await heard)[0]);
}

async function wired(): Promise<{ wire: BadWire; heard: string[]; executor: Socket; claimer: Socket }> {
  const { url, heard } = await startEcho();
  const wire = await BadWire.open(url);
  onTestFinished(() => wire.close());
  return { wire, heard, executor: await open(wire, 'shoal:executor:q'), claimer: await open(wire, 'shoal:worker:q') };
}

const EXECUTORS = /^shoal:executor:/;

test('one way: what is asked arrives, what is answered vanishes, and the connection ends with the trouble', async () => {
  const { wire, heard, executor, claimer } = await wired();
  wire.begin('one-way', EXECUTORS);
  executor.write('asked');
  expect(await ask(claimer, 'meanwhile')).toBe('meanwhile'); // another name: nothing happens to it
  await expect.poll(() => heard).toContain('asked');
  const gone = once(executor, 'close');
  wire.end();
  await gone;
  expect(executor.bytesRead).toBeLessThan(60); // its name came back, and nothing more
  expect(await ask(claimer, 'afterwards')).toBe('afterwards');
});

test('half open: nothing arrives, and nobody hears of a connection that is closed', async () => {
  const { wire, heard, executor, claimer } = await wired();
  wire.begin('half-open', EXECUTORS);
  executor.write('asked');
  expect(await ask(claimer, 'meanwhile')).toBe('meanwhile');
  const gone = once(executor, 'close');
  wire.end();
  await gone;
  expect(heard).not.toContain('asked');
});

test('latency keeps the order of bytes, also when it ends while some are under way', async () => {
  const { wire, executor } = await wired();
  wire.begin('latency', EXECUTORS);
  let heard = '';
  executor.on('data', (chunk) => (heard += String(chunk)));
  executor.write('a');
  executor.write('b');
  await new Promise((resolve) => setImmediate(resolve));
  wire.end();
  executor.write('c');
  await expect.poll(() => heard.slice(-3)).toBe('abc');
});

test('a cut closes the connections that were meant, and no other', async () => {
  const { wire, executor, claimer } = await wired();
  const gone = once(executor, 'close');
  expect(wire.cut(EXECUTORS)).toBe(1);
  await gone;
  expect(await ask(claimer, 'still there')).toBe('still there');
});
