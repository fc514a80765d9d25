// One worker for one GPU. SHOAL_DEVICE says which (gpu:0, gpu:1, …); settings come from the environment.

import { workerMain } from '@shoal/worker/claimer';

process.exit(await workerMain({ fixed: process.env['SHOAL_DEVICE'] === undefined ? { device: 'gpu:0' } : {} }));
