/** Which of a model's two queues: any device may claim from the main lane, only CPU workers from the CPU lane. */
export type Lane = 'main' | 'cpu';
