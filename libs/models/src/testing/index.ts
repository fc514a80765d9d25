// What tests of other packages take from here: models to import, and a hub to pull them from.

export { HubServer } from './hub-server.ts';
export { madeModel, madeTexts, madeVectors, seededNumbers } from './made-models.ts';
export { realModel, type RealModelName } from './real-models.ts';
