//! Small kernels that find a card's limits, as PTX: the driver compiles them, so that no compiler is needed.

use std::fmt::Write;

/// Matrix products of one warp (mma.sync) or four (wgmma) between two checks of the loop's end.
pub(crate) const PRODUCTS: usize = 16;
/// Floating-point operations of one `mma.sync`: 16 x 8 x 16 multiply-adds.
pub(crate) const MMA_FLOPS: f64 = 2.0 * 16.0 * 8.0 * 16.0;
/// Of one `wgmma`: 64 x 256 x 16 multiply-adds.
pub(crate) const WGMMA_FLOPS: f64 = 2.0 * 64.0 * 256.0 * 16.0;

/// `read(from, rounds, out)`: every thread reads 4 x 16 bytes a round, all threads side by side.
pub(crate) const READ: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry read(.param .u64 from, .param .u32 rounds, .param .u64 out)
{
    .reg .pred %p<2>;
    .reg .b32 %r<32>;
    .reg .b64 %d<12>;
    ld.param.u64 %d1, [from];
    ld.param.u32 %r1, [rounds];
    ld.param.u64 %d9, [out];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r6, %r2, %r3, %r4;
    mul.lo.u32 %r7, %r5, %r3;
    mul.wide.u32 %d2, %r6, 16;
    add.u64 %d3, %d1, %d2;
    mul.wide.u32 %d4, %r7, 16;
    mov.u32 %r30, 0;
AGAIN:
    add.u64 %d5, %d3, %d4;
    add.u64 %d6, %d5, %d4;
    add.u64 %d7, %d6, %d4;
    ld.global.nc.L1::no_allocate.v4.u32 {%r10, %r11, %r12, %r13}, [%d3];
    ld.global.nc.L1::no_allocate.v4.u32 {%r14, %r15, %r16, %r17}, [%d5];
    ld.global.nc.L1::no_allocate.v4.u32 {%r18, %r19, %r20, %r21}, [%d6];
    ld.global.nc.L1::no_allocate.v4.u32 {%r22, %r23, %r24, %r25}, [%d7];
    add.u64 %d3, %d7, %d4;
    xor.b32 %r10, %r10, %r11;
    xor.b32 %r12, %r12, %r13;
    xor.b32 %r14, %r14, %r15;
    xor.b32 %r16, %r16, %r17;
    xor.b32 %r18, %r18, %r19;
    xor.b32 %r20, %r20, %r21;
    xor.b32 %r22, %r22, %r23;
    xor.b32 %r24, %r24, %r25;
    xor.b32 %r10, %r10, %r12;
    xor.b32 %r14, %r14, %r16;
    xor.b32 %r18, %r18, %r20;
    xor.b32 %r22, %r22, %r24;
    xor.b32 %r10, %r10, %r14;
    xor.b32 %r18, %r18, %r22;
    xor.b32 %r10, %r10, %r18;
    xor.b32 %r30, %r30, %r10;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    // What was read is used, or the loads would be left out.
    setp.eq.u32 %p1, %r30, 0x5eed1e55;
    @%p1 st.global.u32 [%d9], %r30;
    ret;
}
";

/// Two halves of either sign between 1 and 2 from a thread's number: products of zeros would draw less power.
const NUMBERS: &str = "
    mad.lo.u32 %r3, %r3, 1664525, 1013904223;
    and.b32 %r4, %r3, 0x83ff83ff;
    or.b32 %r4, %r4, 0x3c003c00;
";

fn list(names: &str, count: usize, first: usize) -> String {
    (first..first + count).map(|i| format!("{names}{i}")).collect::<Vec<_>>().join(", ")
}

/// `multiply(rounds, out)` with `mma.sync`: eight independent sums a warp.
pub(crate) fn mma() -> String {
    let mut text = String::from(
        "
.version 8.0
.target sm_80
.address_size 64
.visible .entry multiply(.param .u32 rounds, .param .u64 out)
{
    .reg .pred %p<2>;
    .reg .b32 %r<16>;
    .reg .b64 %d<2>;
    .reg .f32 %f<33>;
    ld.param.u32 %r1, [rounds];
    ld.param.u64 %d1, [out];
    mov.u32 %r3, %tid.x;
",
    );
    for register in 5..11 {
        let _ = writeln!(text, "{NUMBERS}    mov.b32 %r{register}, %r4;");
    }
    for sum in 0..32 {
        let _ = writeln!(text, "    mov.f32 %f{sum}, 0f00000000;");
    }
    text += "AGAIN:\n";
    for product in 0..PRODUCTS {
        let sums = list("%f", 4, product % 8 * 4);
        let _ = writeln!(
            text,
            "    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{sums}}}, {{%r5, %r6, %r7, %r8}}, {{%r9, %r10}}, {{{sums}}};"
        );
    }
    end(&mut text, 32);
    text
}

/// The same with `wgmma`, for Hopper: sums of 64 x 256, both matrices in shared memory.
pub(crate) fn wgmma() -> String {
    let mut text = String::from(
        "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry multiply(.param .u32 rounds, .param .u64 out)
{
    .reg .pred %p<3>;
    .reg .b32 %r<16>;
    .reg .b64 %d<8>;
    .reg .f32 %f<129>;
    .shared .align 128 .b8 tile[10240];
    ld.param.u32 %r1, [rounds];
    ld.param.u64 %d1, [out];
    mov.u32 %r3, %tid.x;
    mov.u32 %r5, tile;
    shl.b32 %r6, %r3, 2;
    add.u32 %r7, %r5, %r6;
    mov.u32 %r8, %ntid.x;
    shl.b32 %r8, %r8, 2;
    add.u32 %r9, %r5, 10240;
FILL:
",
    );
    text += NUMBERS;
    text += "
    st.shared.u32 [%r7], %r4;
    add.u32 %r7, %r7, %r8;
    setp.lt.u32 %p1, %r7, %r9;
    @%p1 bra FILL;
    fence.proxy.async;
    bar.sync 0;
    // Descriptors without a swizzle: the address, 128 bytes to the next 8 inputs, 256 to the next 8 rows.
    shr.u32 %r10, %r5, 4;
    cvt.u64.u32 %d2, %r10;
    or.b64 %d2, %d2, 0x0000001000080000;
    add.u64 %d3, %d2, 128;
    setp.ne.u32 %p2, %r1, 0;
";
    for sum in 0..128 {
        let _ = writeln!(text, "    mov.f32 %f{sum}, 0f00000000;");
    }
    text += "AGAIN:\n    wgmma.fence.sync.aligned;\n";
    let sums = list("%f", 128, 0);
    for _ in 0..PRODUCTS {
        let _ = writeln!(
            text,
            "    wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {{{sums}}}, %d2, %d3, %p2, 1, 1, 0, 0;"
        );
    }
    text += "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n";
    end(&mut text, 128);
    text
}

/// Closes the loop, and uses the sums.
fn end(text: &mut String, sums: usize) {
    *text += "    sub.u32 %r1, %r1, 1;\n    setp.ne.u32 %p1, %r1, 0;\n    @%p1 bra AGAIN;\n";
    let _ = writeln!(text, "    mov.f32 %f{sums}, %f0;");
    for sum in 1..sums {
        let _ = writeln!(text, "    add.f32 %f{sums}, %f{sums}, %f{sum};");
    }
    let _ = writeln!(
        text,
        "    setp.eq.f32 %p1, %f{sums}, 0f4B9A1F37;\n    @%p1 st.global.f32 [%d1], %f{sums};\n    ret;\n}}"
    );
}
