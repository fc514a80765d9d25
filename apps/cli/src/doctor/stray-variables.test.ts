import { expect, test } from 'vitest';
import { strayVariables } from './stray-variables.ts';

test('variables of a Service are told from settings, and misspelt names with what was meant', () => {
  expect(
    strayVariables({
      SHOAL_HTTP_PORT: 'tcp://10.0.0.1:8080',
      SHOAL_HTTP_SERVICE_HOST: '10.0.0.1',
      SHOAL_HTTP_PORT_8080_TCP_ADDR: '10.0.0.1',
      SHOAL_MODLE: 'minilm',
      SHOAL_WHATEVER_ELSE: 'x',
      SHOAL_MODEL: 'minilm',
      SHOAL_TEST_SERVER: 'x',
      SHOAL_RUNTIME_BINDING: 'x', // gone, and warned of elsewhere
      HOME: '/',
    }),
  ).toEqual({
    serviceLinks: ['SHOAL_HTTP_PORT', 'SHOAL_HTTP_SERVICE_HOST', 'SHOAL_HTTP_PORT_8080_TCP_ADDR'],
    misspelt: [
      { name: 'SHOAL_MODLE', nearest: 'SHOAL_MODEL' },
      { name: 'SHOAL_WHATEVER_ELSE', nearest: undefined },
    ],
  });
});
