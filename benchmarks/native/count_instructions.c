// Plugin of QEMU's user mode: writes the number of executed instructions, and of those that use
// registers of 32 bytes (AVX2), to the file $COUNT_FILE.
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
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, int operation,
                                              void* counter, uint64_t summand);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*)(uint64_t id, void* data), void* data);

EXPORT int qemu_plugin_version = 1;

static uint64_t instructions, wide;

static void translated(uint64_t id, struct qemu_plugin_tb* block) {
  (void)id;
  const int kAdd = 0;
  const size_t count = qemu_plugin_tb_n_insns(block);
  size_t wide_count = 0;
  for (size_t i = 0; i < count; ++i) {
    char* const text = qemu_plugin_insn_disas(qemu_plugin_tb_get_insn(block, i));
    wide_count += strstr(text, "%ymm") != NULL;
    free(text);
  }
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAdd, &instructions, count);
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAdd, &wide, wide_count);
}

static void at_exit(uint64_t id, void* data) {
  (void)id, (void)data;
  FILE* const file = fopen(getenv("COUNT_FILE"), "w");
  if (file == NULL) abort();
  fprintf(file, "%llu %llu\n", (unsigned long long)instructions, (unsigned long long)wide);
  fclose(file);
}

EXPORT int qemu_plugin_install(uint64_t id, const void* info, int argc, char** argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
  return 0;
}
