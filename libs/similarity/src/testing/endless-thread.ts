// A thread that never answers, as one that reads a damaged file might: for the test of who ends it.

import { invariant } from '@shoal/contract';

for (;;) invariant(true, 'it goes on');
