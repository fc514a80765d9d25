// A clock that stands still until it is set, for a real server under LD_PRELOAD: cc -O2 -shared -fPIC -o clock.so clock.c
// Until it is set for the first time it is the true one. `DEBUG SLEEP ms`, with the hour in ms since 1970 for seconds, sets
// it: so a client sets it between two commands that it sends in one piece. From then on the monotonic clock goes on by a
// millisecond each time the hour is set, and not else: Valkey 9 takes the hour from it until as much has passed. It would
// take that from the processor, unless it cannot read what this one is.
// A server that is preloaded dies with the process that started it.

#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t fixed_ms;
static volatile int64_t monotonic_ms;


/// No server sleeps for so many seconds; no hour in ms is less.
static const int64_t LEAST_MS = 100000000000;

__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

static void write_ms(int64_t ms, struct timespec* out) {
  out->tv_sec = ms / 1000;
  out->tv_nsec = ms % 1000 * 1000000;
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  if (fixed_ms == 0) return (int)syscall(SYS_clock_gettime, clock, out);
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
      write_ms(fixed_ms, out);
      return 0;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
      write_ms(monotonic_ms, out);
      return 0;
    default:
      return (int)syscall(SYS_clock_gettime, clock, out);
  }
}

int gettimeofday(struct timeval* out, void* zone) {
  (void)zone;
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

int nanosleep(const struct timespec* wanted, struct timespec* left) {
  if (wanted->tv_sec < LEAST_MS - 1) return (int)syscall(SYS_nanosleep, wanted, left);
  if (fixed_ms == 0) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    monotonic_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
  }
  monotonic_ms++;
  // the server has reckoned with a double: the nearest second is meant
  fixed_ms = wanted->tv_sec + (wanted->tv_nsec >= 500000000 ? 1 : 0);
  return 0;
}

static FILE* open_other(const char* name, const char* path, const char* mode) {
  if (strcmp(path, "/proc/cpuinfo") == 0) {
    errno = ENOENT;
    return NULL;
  }
  FILE* (*next)(const char*, const char*) = (FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, name);
  return next(path, mode);
}

FILE* fopen(const char* path, const char* mode) { return open_other("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return open_other("fopen64", path, mode); }
