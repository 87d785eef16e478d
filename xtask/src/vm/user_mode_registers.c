/*
 * Loaded before the C library of a Linux kernel that is a program, on processors with AMX.
 *
 * That kernel reads and writes the registers of the processes it runs (ptrace, NT_X86_XSTATE) into
 * a buffer of fixed size, which was large enough before there were registers for matrices: reading
 * is cut short, and writing what was read is refused (EFAULT, "ptrace set fp regs failed"). Here
 * both are done with a buffer that is large enough, and the kernel sees the part it has room for.
 * What it does not see is what every process began with: nothing in a guest uses those registers.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* include/uapi/linux/elf.h */
#define NT_X86_XSTATE 0x202
/* Where the header's bits of what is in use are: after 512 octets of the legacy area. */
#define IN_USE 512
/* Components 17 and 18: the matrices and their shapes. */
#define MATRICES ((1UL << 17) | (1UL << 18))

static unsigned char registers[1 << 16] __attribute__((aligned(64)));

static long ask(enum __ptrace_request request, pid_t process, void *where, void *data)
{
	return syscall(SYS_ptrace, request, process, where, data);
}

static long with_all_registers(enum __ptrace_request request, pid_t process, struct iovec *seen)
{
	struct iovec all = { registers, sizeof registers };
	long answer = ask(PTRACE_GETREGSET, process, (void *)NT_X86_XSTATE, &all);
	size_t length = seen->iov_len < all.iov_len ? seen->iov_len : all.iov_len;
	unsigned long in_use;

	if (answer < 0)
		return answer;
	if (request == PTRACE_GETREGSET) {
		memcpy(seen->iov_base, registers, length);
		seen->iov_len = length;
		return 0;
	}
	memcpy(registers, seen->iov_base, length);
	memcpy(&in_use, registers + IN_USE, sizeof in_use);
	in_use &= ~MATRICES;
	memcpy(registers + IN_USE, &in_use, sizeof in_use);
	return ask(PTRACE_SETREGSET, process, (void *)NT_X86_XSTATE, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	pid_t process;
	void *where, *data;

	va_start(arguments, request);
	process = va_arg(arguments, pid_t);
	where = va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	if ((request == PTRACE_GETREGSET || request == PTRACE_SETREGSET) &&
	    where == (void *)NT_X86_XSTATE)
		return with_all_registers(request, process, data);
	/* As the C library does: what is peeked at is the answer, not written to an address. */
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		long found = 0;
		long answer = ask(request, process, where, &found);

		return answer < 0 ? answer : found;
	}
	return ask(request, process, where, data);
}
