/* State that every process of the host shares: one small file a GPU, replaced whole, under a lock.
   Readers take no lock: a rename shows them either the old file or the new one. */
#define _DEFAULT_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const char *run_directory(void) {
    const char *run = getenv("MPS_LAB_NVML_RUN");
    return run != NULL ? run : "/run/mps-lab";
}

static void path_of(char *path, const struct device *gpu, const char *suffix) {
    snprintf(path, PATH_BYTES, "%s/nvml/%s%s", run_directory(), gpu->uuid, suffix);
}

static bool marked(const char *name) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", run_directory(), name);
    return access(path, F_OK) == 0;
}

bool driver_loaded(void) { return marked("driver-loaded"); }
bool driver_upgraded(void) { return marked("driver-upgraded"); }
bool driver_hanging(void) { return marked("driver-hanging"); }

struct state state_read(const struct device *gpu) {
    struct state state = {.mig = gpu->mig_at_boot, .mig_pending = gpu->mig_at_boot};
    char path[PATH_BYTES], line[128];
    path_of(path, gpu, ".state");
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return state;
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned value;
        char key[64];
        if (sscanf(line, "%63[a-z_]=%u", key, &value) != 2)
            continue;
        if (strcmp(key, "compute_mode") == 0)
            state.compute_mode = value;
        else if (strcmp(key, "persistence") == 0)
            state.persistence = value != 0;
        else if (strcmp(key, "mig") == 0)
            state.mig = value != 0;
        else if (strcmp(key, "mig_pending") == 0)
            state.mig_pending = value != 0;
        else if (strcmp(key, "lost") == 0)
            state.lost = value != 0;
        else if (strcmp(key, "unsupported") == 0)
            state.unsupported = value != 0;
        else if (strcmp(key, "hanging") == 0)
            state.hanging = value != 0;
        else if (strcmp(key, "no_memory") == 0)
            state.no_memory = value != 0;
    }
    fclose(file);
    return state;
}

static bool state_write(const struct device *gpu, const struct state *state) {
    char path[PATH_BYTES], new_path[PATH_BYTES];
    path_of(path, gpu, ".state");
    path_of(new_path, gpu, ".state.new");
    int file = open(new_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return false;
    bool written = dprintf(file,
                           "compute_mode=%u\npersistence=%d\nmig=%d\nmig_pending=%d\nlost=%d\nunsupported=%d\n"
                           "hanging=%d\nno_memory=%d\n",
                           state->compute_mode, state->persistence, state->mig, state->mig_pending, state->lost,
                           state->unsupported, state->hanging, state->no_memory) > 0;
    written = fchmod(file, 0644) == 0 && written;
    written = close(file) == 0 && written;
    return written && rename(new_path, path) == 0;
}

bool state_change(const struct device *gpu, void (*change)(struct state *, unsigned), unsigned value) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/nvml", run_directory());
    /* whatever the caller's umask is: all processes of the host read what lies here */
    if (mkdir(path, 0755) == 0 ? chmod(path, 0755) != 0 : errno != EEXIST)
        return false;
    snprintf(path, sizeof path, "%s/nvml/lock", run_directory());
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0)
        return false;
    bool changed = false;
    if (flock(lock, LOCK_EX) == 0) {
        struct state state = state_read(gpu);
        change(&state, value);
        changed = state_write(gpu, &state);
    }
    close(lock);
    return changed;
}

/* Rows: <client|compute> <pid> <MiB> [<GPU instance>]. "client" is a client of MPS. */
unsigned processes_read(const struct device *gpu, struct process *rows) {
    char path[PATH_BYTES], line[128], kind[16];
    unsigned count = 0;
    path_of(path, gpu, ".processes");
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (count < MAX_PROCESSES && fgets(line, sizeof line, file) != NULL) {
        struct process row = {.gpu_instance = NO_INSTANCE};
        if (sscanf(line, "%15s %u %llu %d", kind, &row.pid, &row.memory_mib, &row.gpu_instance) < 3 || row.pid == 0)
            continue;
        /* as with the real one, a process that has ended holds nothing */
        if (kill((pid_t)row.pid, 0) != 0 && errno == ESRCH)
            continue;
        row.mps_client = strcmp(kind, "client") == 0;
        rows[count++] = row;
    }
    fclose(file);
    return count;
}
