# SPDX-License-Identifier: Apache-2.0
# Every block of Julia in README.md and docs/julia.md runs, in the order of its page; blocks of packages that are not here
# are marked by their first line.
for page in ("README.md", joinpath("docs", "julia.md"))
    text = read(joinpath(SOURCE, page), String)
    blocks = [m[1] for m in eachmatch(r"^```julia\n(.*?)^```$"ms, text)]
    @test !isempty(blocks)
    home = Module(Symbol("page_", hash(page)))
    for (i, block) in enumerate(blocks)
        startswith(block, "# not run here") && continue
        ran = try
            open("/dev/null", "w") do nowhere
                redirect_stdout(() -> include_string(home, String(block), "$page, block $i"), nowhere)
            end
            true
        catch e
            println(page, " block ", i, ": ", sprint(showerror, e))
            false
        end
        @test ran
    end
end
