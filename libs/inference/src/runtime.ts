// ONNX Runtime itself. Loading this file loads its library, which a claimer must not.

import { createRequire } from 'node:module';
import { runtimeMain } from './provider.ts';

type Runtime = typeof import('onnxruntime-node');
export type InferenceSession = import('onnxruntime-node').InferenceSession;
export type Tensor = import('onnxruntime-node').Tensor;

export const { InferenceSession, Tensor } = createRequire(import.meta.url)(runtimeMain()) as Runtime;
