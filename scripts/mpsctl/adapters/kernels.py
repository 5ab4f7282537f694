"""The small kernels that CUDA processes of ours run, as PTX that the driver compiles; results are known exactly.

All is done in whole numbers of 32 bits, so that a wrong result is wrong by any amount. NVIDIA's own assemblers 12.9 and
13.5 take this text for compute capabilities 7.5, 9.0 and 10.0.
"""

from __future__ import annotations

FILL, CHAIN, TRIAD = "fill", "chain", "triad"
STEPS_PER_LOOP = 4
_WORD = 1 << 32

PTX = """\
.version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 fill_out, .param .u32 fill_a, .param .u32 fill_b, .param .u32 fill_n)
{
 .reg .pred %p<2>;
 .reg .b32 %r<9>;
 .reg .b64 %rd<5>;
 ld.param.u64 %rd1, [fill_out];
 ld.param.u32 %r1, [fill_a];
 ld.param.u32 %r2, [fill_b];
 ld.param.u32 %r3, [fill_n];
 mov.u32 %r4, %ctaid.x;
 mov.u32 %r5, %ntid.x;
 mov.u32 %r6, %tid.x;
 mad.lo.u32 %r7, %r4, %r5, %r6;
 setp.ge.u32 %p1, %r7, %r3;
 @%p1 bra DONE;
 mad.lo.u32 %r8, %r7, %r1, %r2;
 cvta.to.global.u64 %rd2, %rd1;
 mul.wide.u32 %rd3, %r7, 4;
 add.s64 %rd4, %rd2, %rd3;
 st.global.u32 [%rd4], %r8;
DONE:
 ret;
}
// x = x * a + c, loops times; blocks x threads of them
.visible .entry chain(.param .u64 chain_out, .param .u32 chain_a, .param .u32 chain_c, .param .u32 chain_loops)
{
 .reg .pred %p<2>;
 .reg .b32 %r<10>;
 .reg .b64 %rd<5>;
 ld.param.u64 %rd1, [chain_out];
 ld.param.u32 %r1, [chain_a];
 ld.param.u32 %r2, [chain_c];
 ld.param.u32 %r3, [chain_loops];
 mov.u32 %r4, %ctaid.x;
 mov.u32 %r5, %ntid.x;
 mov.u32 %r6, %tid.x;
 mad.lo.u32 %r7, %r4, %r5, %r6;
 mov.u32 %r8, %r7;
LOOP:
 mad.lo.u32 %r8, %r8, %r1, %r2;
 mad.lo.u32 %r8, %r8, %r1, %r2;
 mad.lo.u32 %r8, %r8, %r1, %r2;
 mad.lo.u32 %r8, %r8, %r1, %r2;
 sub.u32 %r3, %r3, 1;
 setp.ne.u32 %p1, %r3, 0;
 @%p1 bra LOOP;
 cvta.to.global.u64 %rd2, %rd1;
 mul.wide.u32 %rd3, %r7, 4;
 add.s64 %rd4, %rd2, %rd3;
 st.global.u32 [%rd4], %r8;
 ret;
}
// out[i] = a * x[i] + y[i], four at a time, over n of four
.visible .entry triad(.param .u64 triad_out, .param .u64 triad_x, .param .u64 triad_y,
                     .param .u32 triad_a, .param .u32 triad_n)
{
 .reg .pred %p<2>;
 .reg .b32 %r<22>;
 .reg .b64 %rd<10>;
 ld.param.u64 %rd1, [triad_out];
 ld.param.u64 %rd2, [triad_x];
 ld.param.u64 %rd3, [triad_y];
 ld.param.u32 %r1, [triad_a];
 ld.param.u32 %r2, [triad_n];
 cvta.to.global.u64 %rd4, %rd1;
 cvta.to.global.u64 %rd5, %rd2;
 cvta.to.global.u64 %rd6, %rd3;
 mov.u32 %r3, %ctaid.x;
 mov.u32 %r4, %ntid.x;
 mov.u32 %r5, %tid.x;
 mov.u32 %r6, %nctaid.x;
 mad.lo.u32 %r7, %r3, %r4, %r5;
 mul.lo.u32 %r8, %r6, %r4;
NEXT:
 setp.ge.u32 %p1, %r7, %r2;
 @%p1 bra END;
 mul.wide.u32 %rd7, %r7, 16;
 add.s64 %rd8, %rd5, %rd7;
 ld.global.v4.u32 {%r9, %r10, %r11, %r12}, [%rd8];
 add.s64 %rd8, %rd6, %rd7;
 ld.global.v4.u32 {%r13, %r14, %r15, %r16}, [%rd8];
 mad.lo.u32 %r17, %r9, %r1, %r13;
 mad.lo.u32 %r18, %r10, %r1, %r14;
 mad.lo.u32 %r19, %r11, %r1, %r15;
 mad.lo.u32 %r20, %r12, %r1, %r16;
 add.s64 %rd9, %rd4, %rd7;
 st.global.v4.u32 [%rd9], {%r17, %r18, %r19, %r20};
 add.u32 %r7, %r7, %r8;
 bra NEXT;
END:
 ret;
}
"""


def filled(index: int, a: int, b: int) -> int:
    """What the kernel FILL leaves at an index."""
    return (index * a + b) % _WORD


def chained(index: int, a: int, c: int, loops: int) -> int:
    """What the kernel CHAIN leaves at an index: x = x * a + c, ``STEPS_PER_LOOP`` times for each of the loops."""
    factor, offset = 1, 0  # what the steps so far do to x
    step_factor, step_offset = a % _WORD, c % _WORD
    steps = loops * STEPS_PER_LOOP
    while steps:
        if steps & 1:
            factor, offset = factor * step_factor % _WORD, (offset * step_factor + step_offset) % _WORD
        step_factor, step_offset = step_factor * step_factor % _WORD, (step_offset * step_factor + step_offset) % _WORD
        steps >>= 1
    return (index * factor + offset) % _WORD
