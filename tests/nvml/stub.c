/* An NVML for tests: libnvidia-ml.so.1 as far as an agent asks, told what to answer by a file that is mapped into
 * memory (NVML_STUB names it; tests/nvml/stub.py writes it, with the same structures). Compiled against NVIDIA's own
 * nvml.h, so the compiler compares every signature and structure with the real one.
 *
 * With -DOLD_DRIVER it lacks what drivers before 510 lacked.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define UNITS 32
#define PROCESSES 64

struct process {
    int64_t pid, used, kind; /* kind: 0 compute, 1 graphics, 2 MPS; used: -1 is the blank value */
};

struct unit {
    char uuid[96], name[96];
    int64_t parent;   /* index of the unit that it is an instance of; -1: a device */
    int64_t instance; /* its number within that one */
    int64_t error;    /* what every call answers; 0: as follows */
    int64_t hang_ms;  /* how long every call takes */
    int64_t memory_error, total, reserved, used;
    int64_t busy_error, busy, memory_busy;
    int64_t power_error, power;
    int64_t ecc_error, corrected, uncorrected;
    int64_t throttle_error, throttles;
    int64_t occupancy; /* millionths; -1: the device does not count it */
    int64_t mig;       /* 1: it is cut into instances */
    int64_t list_error, processes;
    struct process process[PROCESSES];
};

struct control {
    int64_t devices, units, begin_error, begin_hang_ms, restarts, calls;
    char driver[80];
    struct unit unit[UNITS];
};

static struct control *control;
static int64_t begun, seen_restarts;

/* Hangs for as long as it is told, or until it is told otherwise. */
static void hang(const volatile int64_t *ms)
{
    struct timespec slice = {0, 10 * 1000000};
    for (int64_t passed = 0; passed < *ms; passed += 10)
        nanosleep(&slice, NULL);
}

static struct control *told(void)
{
    if (!control) {
        const char *path = getenv("NVML_STUB");
        int file = path ? open(path, O_RDWR) : -1;
        void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file >= 0)
            close(file);
        if (at == MAP_FAILED)
            return NULL;
        control = at;
    }
    return control;
}

/* Handles die with the driver: they carry the number of its restart. */
static nvmlDevice_t handle_of(int64_t index)
{
    return (nvmlDevice_t)(uintptr_t)((uint64_t)(seen_restarts + 1) << 16 | (uint64_t)(index + 1));
}

static nvmlReturn_t find(nvmlDevice_t device, struct unit **unit)
{
    uint64_t raw = (uint64_t)(uintptr_t)device;
    int64_t index = (int64_t)(raw & 0xffff) - 1;
    __atomic_add_fetch(&told()->calls, 1, __ATOMIC_RELAXED);
    if (!begun || seen_restarts != control->restarts)
        return NVML_ERROR_UNINITIALIZED;
    if ((int64_t)(raw >> 16) != seen_restarts + 1 || index < 0 || index >= control->units)
        return NVML_ERROR_INVALID_ARGUMENT;
    *unit = &control->unit[index];
    hang(&(*unit)->hang_ms);
    return (nvmlReturn_t)(*unit)->error;
}

#define UNIT(device)                            \
    struct unit *unit;                          \
    nvmlReturn_t found = find(device, &unit);   \
    if (found != NVML_SUCCESS)                  \
        return found

static nvmlReturn_t copied(const char *from, char *to, unsigned int length)
{
    if (strlen(from) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    if (!told())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    hang(&control->begin_hang_ms);
    if (control->begin_error)
        return (nvmlReturn_t)control->begin_error;
    begun++;
    seen_restarts = control->restarts;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!begun)
        return NVML_ERROR_UNINITIALIZED;
    begun--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    (void)result;
    return "an error of the stub";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return begun ? copied(control->driver, version, length) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (!begun || seen_restarts != control->restarts)
        return NVML_ERROR_UNINITIALIZED;
    *count = (unsigned int)control->devices;
    return NVML_SUCCESS;
}

/* Devices come first among the units, in the order of their indices. A lost one may still be listed. */
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (!begun || seen_restarts != control->restarts)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= control->devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = handle_of(index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    UNIT(device);
    return copied(unit->uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    UNIT(device);
    return copied(unit->name, name, length);
}

/* The old call: what the driver keeps for itself counts as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    UNIT(device);
    if (unit->memory_error)
        return (nvmlReturn_t)unit->memory_error;
    memory->total = (unsigned long long)unit->total;
    memory->used = (unsigned long long)(unit->used + unit->reserved);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    UNIT(device);
    rates->gpu = (unsigned int)unit->busy;
    rates->memory = (unsigned int)unit->memory_busy;
    return (nvmlReturn_t)unit->busy_error;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    UNIT(device);
    *power = (unsigned int)unit->power;
    return (nvmlReturn_t)unit->power_error;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(
    nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *count)
{
    UNIT(device);
    if (counter != NVML_VOLATILE_ECC)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned long long)(type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? unit->corrected : unit->uncorrected);
    return (nvmlReturn_t)unit->ecc_error;
}

static nvmlReturn_t throttles_of(nvmlDevice_t device, unsigned long long *reasons)
{
    UNIT(device);
    *reasons = (unsigned long long)unit->throttles;
    return (nvmlReturn_t)unit->throttle_error;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return throttles_of(device, reasons);
}

static nvmlReturn_t listed(nvmlDevice_t device, int64_t kind, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    unsigned int room = *count, number = 0;
    UNIT(device);
    if (unit->list_error)
        return (nvmlReturn_t)unit->list_error;
    for (int64_t i = 0; i < unit->processes; i++) {
        if (unit->process[i].kind != kind)
            continue;
        if (infos && number < room) {
            memset(&infos[number], 0, sizeof infos[number]);
            infos[number].pid = (unsigned int)unit->process[i].pid;
            infos[number].usedGpuMemory = (unsigned long long)unit->process[i].used;
        }
        number++;
    }
    *count = number;
    return number > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define LIST(kind, number)                                                                                        \
    nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v2(                                                        \
        nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)                                    \
    {                                                                                                             \
        return listed(device, number, count, infos);                                                              \
    }
LIST(Compute, 0)
LIST(Graphics, 1)
LIST(MPSCompute, 2)

#ifndef OLD_DRIVER

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    UNIT(device);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (unit->memory_error)
        return (nvmlReturn_t)unit->memory_error;
    memory->total = (unsigned long long)unit->total;
    memory->reserved = (unsigned long long)unit->reserved;
    memory->used = (unsigned long long)unit->used;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return throttles_of(device, reasons);
}

#define LIST_3(kind, number)                                                                                      \
    nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v3(                                                        \
        nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)                                       \
    {                                                                                                             \
        return listed(device, number, count, (nvmlProcessInfo_v2_t *)infos);                                      \
    }
LIST_3(Compute, 0)
LIST_3(Graphics, 1)
LIST_3(MPSCompute, 2)

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    UNIT(device);
    if (unit->mig < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = (unsigned int)unit->mig;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    UNIT(device);
    *count = 7;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance)
{
    unsigned int number = 0;
    UNIT(device);
    for (int64_t i = control->devices; i < control->units; i++)
        if (&control->unit[control->unit[i].parent] == unit && number++ == index) {
            *instance = handle_of(i);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    UNIT(device);
    *id = (unsigned int)unit->instance;
    return NVML_SUCCESS;
}

struct nvmlGpmSample_st {
    int64_t occupancy;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    UNIT(device);
    support->isSupportedDevice = unit->occupancy >= 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    UNIT(device);
    sample->occupancy = unit->occupancy;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample)
{
    UNIT(device);
    for (int64_t i = control->devices; i < control->units; i++)
        if (&control->unit[control->unit[i].parent] == unit && control->unit[i].instance == (int64_t)instance) {
            sample->occupancy = control->unit[i].occupancy;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
    if (asked->version != NVML_GPM_METRICS_GET_VERSION || asked->sample1 == asked->sample2)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < asked->numMetrics; i++) {
        int known = asked->metrics[i].metricId == NVML_GPM_METRIC_SM_OCCUPANCY;
        asked->metrics[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        asked->metrics[i].value = (double)asked->sample2->occupancy / 10000;
    }
    return NVML_SUCCESS;
}

#endif
