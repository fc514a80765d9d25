// GPUs of every maker by ONNX Runtime's WebGPU provider, which takes the first one that the system has.

import { access } from 'node:fs/promises';
import { visibleDevice } from '../cuda-visibility.ts';
import type { OpenProvider } from '../device-options.ts';
import { Refused } from '../device-refusals.ts';
import { openPrecise, type Kinds } from './precise.ts';

const WEBGPU_KINDS: Kinds = { fp16: 'plain-fp16', fp32: 'plain-fp32' };

export const openWebGpu: OpenProvider = async (options) => {
  const visibility = visibleDevice(0, options.environment['CUDA_VISIBLE_DEVICES']);
  if ('refusal' in visibility) throw new Refused(visibility.refusal); // WebGPU would see the GPU that somebody hid
  if (options.model.graphKind === 'int8') throw new Refused('int8 models run on CPUs alone', { isAbsence: true });
  // a driver that somebody chose may need no device, such as Mesa's in software
  const isNamed = options.environment['VK_DRIVER_FILES'] !== undefined;
  if (process.platform === 'linux' && !isNamed && !(await exists('/dev/dri')) && !(await exists('/dev/dxg')))
    throw new Refused('no graphics device in /dev/dri', { isAbsence: true });
  return openPrecise(options, WEBGPU_KINDS, { provider: 'webgpu', device: 'webgpu:0' });
};

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}
