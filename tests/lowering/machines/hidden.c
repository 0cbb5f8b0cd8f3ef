// CPUID without AVX-512: replaces the instruction "ud2", which hidden.py writes over "cpuid" in copies of the runtimes.
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

// Leaf 7: AVX-512 F, DQ, IFMA, CD, BW and VL; VBMI, VBMI2, VNNI, BITALG and VPOPCNTDQ; VP2INTERSECT, AMX and FP16.
static const unsigned EBX = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 28 | 1u << 30 | 1u << 31;
static const unsigned ECX = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
static const unsigned EDX = 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;
static const unsigned BF16 = 1u << 5; // EAX of its subleaf 1

static void answer(int number, siginfo_t *info, void *context) {
  greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *at = (const unsigned char *)r[REG_RIP];
  if (at[0] != 0x0f || at[1] != 0x0b) {
    signal(number, SIG_DFL);
    return;
  }
  unsigned leaf = r[REG_RAX], subleaf = r[REG_RCX], a, b, c, d;
  __cpuid_count(leaf, subleaf, a, b, c, d);
  if (leaf == 7 && subleaf == 0) b &= ~EBX, c &= ~ECX, d &= ~EDX;
  if (leaf == 7 && subleaf == 1) a &= ~BF16;
  r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d, r[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
  struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGILL, &action, 0);
}
