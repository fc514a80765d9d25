// The part of cli-progress 3.12 that progress.ts uses; the package brings no types.

declare module 'cli-progress' {
  export interface BarOptions {
    readonly format: () => string;
    readonly stream: NodeJS.WritableStream;
    readonly clearOnComplete: boolean;
    readonly hideCursor: boolean;
    readonly gracefulExit: boolean;
    readonly fps: number;
    readonly linewrap: boolean;
  }

  export class SingleBar {
    constructor(options: BarOptions);
    start(total: number, value: number): void;
    update(value: number): void;
    setTotal(total: number): void;
    stop(): void;
  }
}
