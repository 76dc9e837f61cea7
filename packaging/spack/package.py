"""Recipe for Spack. Copy it to packages/dayfly/ of a repository of recipes. Not run: Spack is not on the build machines."""

from spack.package import *


class Dayfly(Package):
    """Short-lived functions on idle cores of supercomputers, clusters and laptops, invoked in microseconds."""

    # No release is published: name a checkout with `spack develop --path DIR dayfly@main`.
    version("main", branch="main")
    license("Apache-2.0")

    variant("python", default=True, description="Install the Python package")
    variant("fabric", default=False, description="Load libfabric for RDMA")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("rust@1.88:", type="build")
    depends_on("libfabric@1.15:", when="+fabric", type="run")
    depends_on("python@3.11:", when="+python", type=("build", "run"))
    depends_on("py-maturin@1.9:1", when="+python", type="build")
    depends_on("py-pip", when="+python", type="build")
    depends_on("py-cloudpickle@3.0:3", when="+python", type=("build", "run"))

    phases = ["build", "install"]

    def build(self, spec, prefix):
        packages = ("dayfly-cli", "dayfly-bench", "dayfly-executor", "dayfly-c", "dayfly-mpi", "dayfly-mpi-abi")
        cargo = which("cargo")
        cargo("build", "--release", "--locked", *[part for name in packages for part in ("-p", name)])
        if spec.satisfies("+python"):
            which("python3")("scripts/package.py", "--fill-wheel", "--programs", "target/release")
            which("maturin")("build", "--release", "--locked", "-m", "bindings/python/Cargo.toml", "--out", "wheels")

    def install(self, spec, prefix):
        for name in ("dayfly", "dayfly-bench", "dayfly-executor"):
            install(join_path("target", "release", name), mkdirp_in(prefix.bin))
        for name in ("libdayfly.so", "libdayfly.a"):
            install(join_path("target", "release", name), mkdirp_in(prefix.lib))
        install_tree("bindings/c/include", prefix.include)
        install_tree("bindings/cxx/include", prefix.include)
        if spec.satisfies("+python"):
            which("python3")("-m", "pip", "install", "--no-deps", "--no-index", f"--prefix={prefix}", *find("wheels", "*.whl"))


def mkdirp_in(directory):
    mkdirp(directory)
    return directory
