export { HubServer } from './hub-server.ts';
export { madeModel, madeTexts, madeVectors } from './made-models.ts';
