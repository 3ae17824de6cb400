// Plugin of QEMU's user mode: writes the number of executed instructions, and with an argument the
// number of those that use registers of 32 bytes (AVX2), to the file $COUNT_FILE.
// The declarations are those of qemu-plugin.h, version 1, which Debian does not package.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb* block, size_t index);
char* qemu_plugin_insn_disas(const struct qemu_plugin_insn* instruction);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
                                           void (*)(uint64_t id, struct qemu_plugin_tb* block));
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn* instruction, int operation,
                                                void* counter, uint64_t summand);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*)(uint64_t id, void* data), void* data);

EXPORT int qemu_plugin_version = 1;

static uint64_t instructions, wide;
static int counts_wide;

// Counts each instruction rather than those of a block: QEMU drops a block's last instruction if it
// crosses a page, and begins the next block with it, but the block of a plugin still contains it.
static void translated(uint64_t id, struct qemu_plugin_tb* block) {
  (void)id;
  const int kAdd = 0;
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
    struct qemu_plugin_insn* const instruction = qemu_plugin_tb_get_insn(block, i);
    qemu_plugin_register_vcpu_insn_exec_inline(instruction, kAdd, &instructions, 1);
    if (!counts_wide) continue;
    char* const text = qemu_plugin_insn_disas(instruction);
    if (strstr(text, "%ymm") != NULL) {
      qemu_plugin_register_vcpu_insn_exec_inline(instruction, kAdd, &wide, 1);
    }
    free(text);
  }
}

static void at_exit(uint64_t id, void* data) {
  (void)id, (void)data;
  FILE* const file = fopen(getenv("COUNT_FILE"), "w");
  if (file == NULL) abort();
  fprintf(file, "%llu %llu\n", (unsigned long long)instructions, (unsigned long long)wide);
  fclose(file);
}

EXPORT int qemu_plugin_install(uint64_t id, const void* info, int argc, char** argv) {
  (void)info, (void)argv;
  counts_wide = argc > 0;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
  return 0;
}
