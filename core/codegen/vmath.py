"""placeholder until the branch vmath is merged"""
from core.codegen.llvm import Function, Value
def _lib(name):
    def emit(f, *args):
        out=None
        a=args[0]
        if a.lanes==1:
            n=name+("f" if a.dtype=="float32" else "")
            f.declarations.add(f"declare {a.type} @{n}({', '.join(x.type for x in args)})")
            return f.op(f"call {a.type} @{n}({', '.join(map(str,args))})",a.dtype)
        res=Value("poison",a.dtype,a.lanes)
        for i in range(a.lanes):
            parts=[f.op(f"extractelement {x}, i64 {i}",x.dtype) for x in args]
            r=emit(f,*parts)
            res=f.op(f"insertelement {res}, {r}, i64 {i}",a.dtype,a.lanes)
        return res
    return emit
FUNCTIONS={n:_lib(m) for n,m in dict(exp="exp",expm1="expm1",log="log",log1p="log1p",log2="log2",log10="log10",tanh="tanh",sinh="sinh",cosh="cosh",erf="erf",erfc="erfc",sin="sin",cos="cos",tan="tan",arcsin="asin",arccos="acos",arctan="atan",arctan2="atan2",arcsinh="asinh",arccosh="acosh",arctanh="atanh",power="pow").items()}
