// One worker on the CPU of this machine. Settings come from the environment (docs/settings.md).

import { workerMain } from '@shoal/worker/claimer';

process.exit(await workerMain({ fixed: { device: 'cpu' } }));
