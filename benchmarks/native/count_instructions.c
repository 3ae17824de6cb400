// Plugin of QEMU's user mode: writes the number of executed instructions to the file $COUNT_FILE.
// The declarations are those of qemu-plugin.h, version 1, which Debian does not package.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
                                           void (*)(uint64_t id, struct qemu_plugin_tb* block));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, int operation,
                                              void* counter, uint64_t summand);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*)(uint64_t id, void* data), void* data);

EXPORT int qemu_plugin_version = 1;

static uint64_t instructions;

static void translated(uint64_t id, struct qemu_plugin_tb* block) {
  (void)id;
  const int kAdd = 0;
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAdd, &instructions,
                                           qemu_plugin_tb_n_insns(block));
}

static void at_exit(uint64_t id, void* data) {
  (void)id, (void)data;
  FILE* const file = fopen(getenv("COUNT_FILE"), "w");
  if (file == NULL) abort();
  fprintf(file, "%llu\n", (unsigned long long)instructions);
  fclose(file);
}

EXPORT int qemu_plugin_install(uint64_t id, const void* info, int argc, char** argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
  return 0;
}
