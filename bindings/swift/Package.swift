// swift-tools-version: 6.0
import PackageDescription

// The library itself is found as any C library is: through pkg-config (`mlxgen.pc` of an installed
// archive), or, without it, through -Xlinker -L and the header beside this package in its repository.
let package = Package(
    name: "MLXGen",
    platforms: [.macOS(.v14), .iOS(.v17)],
    products: [.library(name: "MLXGen", targets: ["MLXGen"])],
    targets: [
        .systemLibrary(name: "CMLXGen", pkgConfig: "mlxgen"),
        .target(name: "MLXGen", dependencies: ["CMLXGen"]),
        .testTarget(name: "MLXGenTests", dependencies: ["MLXGen", "CMLXGen"]),
    ],
    swiftLanguageModes: [.v6]
)
